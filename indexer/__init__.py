"""The nightly job: a catalogue and its events become one immutable snapshot. Never imports services."""
