"""Embeddings from encode to prefill (or decode in E/PD) over TCP: no shared volume, bounded memory.

    protocol        the bytes on the wire, and what is refused; pure
    connection      a socket with time limits, and the handshake that proves the stage token
    memory          bytes that several processes of a pod can map
    reservations    what was reported and not yet fetched; room for it, and for requests to come
    store           encode's bounded store of embeddings
    server          answers fetches from the store; threads of encode's worker process
    client          fetches embeddings from one peer
    arrivals        what a consumer has fetched or is fetching; threads of its engine-core process
    mapped_file     how encode's worker process tells its engine-core process something
    counters        numbers, told so
    journal         what becomes of reservations, told so
    connector       vLLM's encoder-cache connector, made of these

On encode the tensors are in the worker process, so store and server are there. On a consumer the scheduler
decides when a request may run, so the fetching is in the engine-core process; its worker maps what arrived.
On CPU these are different processes, on one GPU they are one; nothing depends on it.
"""
