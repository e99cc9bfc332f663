"""The OpenAI-compatible front: one request in, an encode, a prefill and a decode leg out.

body, validation    what a client may send
topology, legs      which engine gets which part of it (pure)
replies, events     what engines answer, and what of it a client sees (pure)
endpoints, infos    which engines there are, and whether they agree
client, pipeline    the legs sent, in order, with deadlines and retries
server, main        HTTP and process
"""
