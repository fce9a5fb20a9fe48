"""The switch's side of P4Runtime: a server for any P4Info, and what it asks of the data plane behind it."""
