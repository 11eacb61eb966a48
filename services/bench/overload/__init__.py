"""`feedline bench overload`: the laws of overload beside what a service does, from half of its peak to ten times it."""
