"""The OpenAI-compatible front: one request in, an encode, a prefill and a decode leg out.

admission           how many requests at once
body, validation    what a client may send
legs                which engine gets which part of it (pure)
replies, events     what engines answer, and what of it a client sees (pure)
discovery, slices   where the engines of a cluster are; api_server asks for it
endpoints, engines  which engines there are, and which of them serve together; infos, readiness ask them
client, pipeline    the legs sent, in order, with deadlines and retries
media_cache         pictures that encode has seen
server, main        HTTP and process
"""
