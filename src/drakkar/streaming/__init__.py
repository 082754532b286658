"""Room ``streaming``: the wire forms of exec, attach and port-forward, which the API server and node agents share.

:mod:`drakkar.streaming.channels` has the messages of the WebSocket subprotocols, :mod:`drakkar.streaming.spdy` the
frames of SPDY/3.1, which kubectl still speaks inside WebSockets to forward ports and alone where WebSockets fail.
"""
