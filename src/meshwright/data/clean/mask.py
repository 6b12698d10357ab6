"""Replace e-mail addresses and public IP addresses."""

import ipaddress
import re

# Reserved for documentation: RFC 2606, RFC 5737, RFC 3849.
EMAIL_MASK = "email@example.com"
IPV4_MASK = "192.0.2.1"
IPV6_MASK = "2001:db8::1"

# Lengths are those of RFC 5321; bounded, so that no text costs more than its length.
EMAIL = re.compile(r"(?<![\w.%+-])[\w.%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![\w-])")
IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\.?\w)")
# Addresses of the public internet start with 2 or 3 (RFC 4291, section 2.4).
IPV6 = re.compile(r"(?<![\w:.])[23][0-9A-Fa-f]{3}:[0-9A-Fa-f:]{1,34}(?![\w:])")


def mask(text: str) -> str:
    """The text with e-mail addresses and public IP addresses replaced by ones reserved for documentation.

    Addresses of private networks, loopback and the like stay: they tell of no one.
    """
    if "@" in text:
        text = EMAIL.sub(EMAIL_MASK, text)
    text = IPV4.sub(lambda match: _public(match[0], IPV4_MASK), text)
    return IPV6.sub(lambda match: _public(match[0], IPV6_MASK), text)


def _public(address: str, replacement: str) -> str:
    try:
        return replacement if ipaddress.ip_address(address).is_global else address
    except ValueError:
        return address
