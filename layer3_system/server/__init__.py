"""The HTTP server around s08's Bridge, with OpenAI's API: `lab serve`.

cli           `lab serve`
assembly      an engine made of its flags
fleet_engine  engines in other processes, as one
drafters      what guesses, and what a step with guesses costs here
tiers         memory below the pages, and what a copy costs here
app           the routes
protocol      what a client asks, read and checked
messages      the messages of a chat
tools         calls of a client's functions
responses     what a client gets
tokenization  /tokenize and /detokenize
listener      listening, and shutting down
sockets       the socket that listens
server_thread  a server in a thread of this process
connection    limits of one connection
middleware    what holds for every request
hosts         which hosts and pages may ask
monitor       what can be seen of it all
metrics       /metrics, with vLLM's names
live          the live page's data
"""
