"""The errors Buttress raises on purpose.

ButtressError
├── UserError        a usage error: printed as one line, exit code 2
│   ├── ArgumentError   a call that does not fit the signature of the function
│   ├── UnknownName  a name that is in no registry, with the nearest names that are
│   └── OutdatedFile a file with results that another version of Buttress wrote
├── DataError        a dataset that is missing, incomplete or corrupt
└── RunError         a run that failed, or a file of a run that cannot be used
    └── CorruptFile  a file of a run that is truncated or altered
"""

from __future__ import annotations


class ButtressError(Exception):
    """Base of all errors that carry a message for the user."""

    exit_code = 1


class UserError(ButtressError, ValueError):
    """A usage error; the message says what must hold and what to do."""

    exit_code = 2


class ArgumentError(UserError, TypeError):
    """A call does not fit the signature of a public function; the message says what to write."""


class UnknownNameError(UserError, LookupError):
    """A name that is in no registry."""


class OutdatedFileError(UserError):
    """A file was written by another version; it is intact and must not be overwritten."""


class DataError(ButtressError):
    """A dataset cannot be used; the message says how to get it."""

    exit_code = 2


class RunError(ButtressError):
    """A run failed, or its files do not fit together."""


class CorruptFileError(RunError):
    """A file is truncated or altered and must be made again."""
