PEERS = {}
