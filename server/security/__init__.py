"""Who may call, and over what wire: `tokens` names callers, `tls` is the wire, `exposure` warns of an open door."""
