"""A wall clock that can be set for the processes of one laboratory alone, by a library that is loaded before others.
Nobody else's clock moves. Without a compiler there is none, and `why_not` says so."""

import mmap
import os
import struct
import subprocess

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
static volatile long *ahead;    /* seconds */
static int (*real)(clockid_t, struct timespec *);
__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("SOAK_CLOCK");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  void *page = file < 0 ? MAP_FAILED : mmap(0, 4096, PROT_READ, MAP_SHARED, file, 0);
  if (page != MAP_FAILED) ahead = page;
  real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
}
int clock_gettime(clockid_t id, struct timespec *now) {
  if (!real) begin();
  int result = real(id, now);
  if (!result && ahead && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += *ahead;
  return result;
}
time_t time(time_t *out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}
int gettimeofday(struct timeval *out, void *zone) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  out->tv_sec = now.tv_sec;
  out->tv_usec = now.tv_nsec / 1000;
  return 0;
}
"""


class Clock:
    def __init__(self, lab):
        library, self.path = lab.path("clock.so"), lab.path("clock")
        with open(self.path, "wb") as file:
            file.write(bytes(4096))
        self.why_not = None
        try:
            subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, "-x", "c", "-", "-ldl"], input=SOURCE, text=True,
                           capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            self.why_not = f"no library to move a clock with: {error}"
        # For who is to have this clock.
        self.environment = {} if self.why_not else {"LD_PRELOAD": library, "SOAK_CLOCK": self.path}

    @property
    def prefix(self):
        """What precedes a command that is to have this clock."""
        return ["env", *(f"{key}={value}" for key, value in self.environment.items())]

    def set(self, ahead_s):
        """From now on it is this much later than it is."""
        with open(self.path, "r+b") as file, mmap.mmap(file.fileno(), 4096) as page:
            struct.pack_into("<q", page, 0, ahead_s)
