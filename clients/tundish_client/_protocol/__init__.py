"""The protocol without input or output (see docs/protocol.md).

Nothing in this package opens a socket, starts a thread or knows an event loop. Drivers ask for the
buffer to fill (`get_buffer`), say how much arrived (`buffer_updated`), and write what
`data_to_send` returns.

Modules: `frames` (messages to bytes and back), `values` and `dtypes` (what may stand in a batch),
`registry` (user classes), `wire_errors` (exceptions), `connection` (both directions together).
"""
