"""What the golden vectors send, by subject. Their outcomes are recorded from BMv2, not written here."""
