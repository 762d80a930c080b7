"""What a load of sectors writes to: an NBD face, a connection for each hand, or a file, by whatever is mounted there.
All calls block until they are answered. `Refused` is an error that the disk gave; `Gone` says that there is no
disk any more."""

import os

from .stamp import SECTOR


class Refused(Exception):
    """An error of the disk, with its number."""

    def __init__(self, number):
        super().__init__(os.strerror(number))
        self.number = number


class Gone(Exception):
    """The connection is lost."""


class Nbd:
    """One connection to an NBD face."""

    def __init__(self, path):
        # Not everywhere where this package is imported.
        import nbd
        self.nbd = nbd
        self.handle = nbd.NBD()
        try:
            self.handle.connect_uri(f"nbd+unix:///?socket={path}")
        except nbd.Error as error:
            raise Gone(str(error)) from None

    def call(self, function, *arguments):
        try:
            return function(*arguments)
        except self.nbd.Error as error:
            if self.handle.aio_is_ready() and error.errnum:
                raise Refused(error.errnum) from None
            raise Gone(str(error)) from None

    def read(self, at, length):
        return self.call(self.handle.pread, length, at)

    def write(self, at, data, fua=False):
        self.call(self.handle.pwrite, data, at, self.nbd.CMD_FLAG_FUA if fua else 0)

    def zero(self, at, length):
        self.call(self.handle.zero, length, at)

    def flush(self):
        self.call(self.handle.flush)

    def close(self):
        # Not an orderly goodbye, which would wait for who may be stopped.
        self.handle = None


class File:
    """A file, which is there already. What is read comes from the disk below it if its pages are clean."""

    def __init__(self, path):
        try:
            self.file = os.open(path, os.O_RDWR)
        except OSError as error:
            raise Gone(str(error)) from None

    def call(self, function, *arguments):
        try:
            return function(self.file, *arguments)
        except OSError as error:
            raise Refused(error.errno) from None

    def read(self, at, length):
        self.call(os.posix_fadvise, at, length, os.POSIX_FADV_DONTNEED)
        return self.call(os.pread, length, at)

    def write(self, at, data, fua=False):
        self.call(os.pwritev, [data], at, os.RWF_DSYNC if fua else 0)

    def zero(self, at, length):
        self.write(at, bytes(length))

    def flush(self):
        self.call(os.fdatasync)

    def close(self):
        os.close(self.file)


KINDS = {"nbd": Nbd, "file": File}


def prepare(path, sectors):
    """Makes the file of a load, on whatever is mounted there, durably."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(file, bytes(sectors * SECTOR))
    os.fsync(file)
    os.close(file)
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
