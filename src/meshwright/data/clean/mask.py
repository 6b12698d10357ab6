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


def mask(text: str) -> tuple[str, dict[str, int]]:
    """The text with e-mail addresses and public IP addresses replaced by ones reserved for documentation, and how many.

    Addresses of private networks, loopback and the like stay: they tell of no one.
    """
    text, emails = EMAIL.subn(EMAIL_MASK, text) if "@" in text else (text, 0)
    text, ipv4 = _without_public(IPV4, IPV4_MASK, text)
    text, ipv6 = _without_public(IPV6, IPV6_MASK, text)
    return text, {"mask_pii.email": emails, "mask_pii.ipv4": ipv4, "mask_pii.ipv6": ipv6}


def _without_public(pattern: re.Pattern[str], replacement: str, text: str) -> tuple[str, int]:
    """The text with the public addresses among the matches replaced, and how many they were."""
    times = 0

    def replaced(match: re.Match[str]) -> str:
        nonlocal times
        if not _is_public(match[0]):
            return match[0]
        times += 1
        return replacement

    return pattern.sub(replaced, text), times


def _is_public(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_global
    except ValueError:
        return False
