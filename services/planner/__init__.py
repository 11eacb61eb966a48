"""What a budget, a bill and a machine come to: pure arithmetic, no I/O."""
