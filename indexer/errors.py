"""What stops a build. Bad rows do not: they are quarantined.

BuildError
├── SettingsError   the settings cannot be used with these files (a mapped column is missing)
├── InputError      a file cannot be read, or holds nothing
├── EncoderError    the encoder cannot be found, loaded, or trusted with what it gave
├── TooManyBadRows  more of the input is bad than the settings allow
└── GateFailed      the snapshot that was built must not be published
"""

from __future__ import annotations


class BuildError(Exception):
    """The build stops, nothing is published; the message names the file, field or gate and what is expected."""


class SettingsError(BuildError):
    """The settings do not fit the input; the message names the setting."""


class InputError(BuildError):
    """A file or folder cannot be read; the message names it."""


class EncoderError(BuildError):
    """The encoder cannot be found or loaded, or its vectors cannot be used."""


class TooManyBadRows(BuildError):
    """The share of bad rows is above `max_bad_share`; the message says where they are written."""


class GateFailed(BuildError):
    """A gate before publishing did not hold; the message names every such gate, what was measured and the bound."""
