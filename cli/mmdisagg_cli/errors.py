"""What can go wrong with a command. The message is for the user: what happened, and what to do.

CommandError              exit code 1
    DeploymentFileError   the YAML cannot be read or is not valid                     exit code 2
    BadPicture            the picture for the demo cannot be read                     exit code 2
    UnusableState         what was written about a running deployment cannot be read   exit code 2
    StillRunning          processes of a deployment could not be ended
    AlreadyRunning        a deployment of this name runs already
    NoEngineSlot          other engines have the machine
    NoFreePort            the wanted port is in use
    MissingProgram        a role's program is not installed
    MissingModel          the model's directory is not there
    NotComparable         the running deployment is not the one in the file, or not ready
    RoleDied              a role's process ended by itself
    NotReady              roles were not ready in time
    ChatError             a server gave no answer
"""


class CommandError(Exception):
    """The command cannot go on; `exit_code` is what the shell gets."""

    exit_code = 1
