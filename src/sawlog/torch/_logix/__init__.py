"""LogIX's classes on top of :class:`sawlog.torch.Run`; ``sawlog.logix`` exports them."""
