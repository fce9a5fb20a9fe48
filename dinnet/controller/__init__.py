"""The controller: what the network should be, compared with what it is, for ever."""
