"""What somebody does at the console of a guest with a root of its own."""


def login(guest, seconds=120):
    """From the login prompt to a shell that answers."""
    guest.says("login: ", seconds)
    guest.types("root\n")
    guest.says(r"[#$] ", 60)
    enter(guest, "echo I am $USER on $(uname -n)", "^I am root on guest", 60)


def enter(guest, line, says, seconds):
    """Types a line, and waits for what is to come of it."""
    guest.types(line + "\n")
    return guest.says(says, seconds)


def power_off(guest, seconds=120):
    """In order: the root has been given back before the machine goes off."""
    enter(guest, "poweroff", "root-init: shutting down", 60)
    guest.finishes(seconds)
