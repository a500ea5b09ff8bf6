"""Every error that a user may see.

RealCharError
├── InvalidInput      the picture, a parameter or a file of the user's is not usable     exit 2, HTTP 422
├── NotFound          the thing does not exist, or is not this owner's                   exit 2, HTTP 404
├── ModelError        the base or a LoRA file is missing, damaged or does not fit        exit 1, HTTP 503
├── OutOfMemory       even the smallest plan does not fit                                exit 1, HTTP 507
├── ResultError       the run ended, but what came out is no picture (NaN, one colour)   exit 1, HTTP 500
├── JobError          the job or the data folder is not in a state that allows this      exit 1, HTTP 409
└── StorageError      disk full, folder or job database not usable                       exit 1, HTTP 507

The message is one sentence: what, the value, the remedy. `code` and `args_` carry the same without words, so that a
front end can say it in another language.
"""

from __future__ import annotations

import errno
from typing import Any


class RealCharError(Exception):
    """Base of all errors that are shown to a user as they are, without a traceback."""

    exit_code = 1
    http_status = 500

    def __init__(self, code: str, message: str, **args_: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.args_ = args_

    def to_json(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message, "args": self.args_}


class InvalidInput(RealCharError):
    exit_code = 2
    http_status = 422


class NotFound(RealCharError):
    exit_code = 2
    http_status = 404


class ModelError(RealCharError):
    http_status = 503


class OutOfMemory(RealCharError):
    http_status = 507


class ResultError(RealCharError):
    http_status = 500


class JobError(RealCharError):
    http_status = 409


class StorageError(RealCharError):
    http_status = 507


def too_many_blocks(asked: int, number: int) -> InvalidInput:
    """Return the sentence for a number of resident blocks that a base of `number` blocks can't have."""
    return InvalidInput(
        "resident_blocks",
        f"{asked} resident blocks are not possible; this base has {number}, choose 0 to {number}.",
        value=asked,
    )


def storage_error(error: OSError, what: str) -> StorageError:
    """Return the sentence for a file that could not be written; `what` names it."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "free some space and try again" if full else "choose another folder or name"
    reason = error.strerror or type(error).__name__
    return StorageError("disk" if full else "folder", f"{what} could not be written ({reason}); {remedy}.", what=what)
