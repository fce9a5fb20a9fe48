"""What wpa_supplicant is given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dinnet.errors import DinnetError
from dinnet.host.macsec import MacsecLink
from dinnet.host.macsec_keys import Secret
from dinnet.host.mka import configuration

LINK = MacsecLink("a-b", "ms0", "va", "02:00:00:00:00:0b", Path("/none"), cipher="gcm-aes-128", mka=True)


def test_both_ends_get_the_same_secrets_and_other_links_get_others() -> None:
    def secrets(link: MacsecLink) -> list[str]:
        text = bytes(configuration(link, Secret(bytearray(range(32)))).view).decode()
        return [line for line in text.splitlines() if "mka_c" in line]

    mine = secrets(LINK)
    assert [len(line.split("=")[1]) for line in mine] == [32, 64]  # hexadecimal: a CAK of 128 bits, a CKN of 256
    assert secrets(replace(LINK, parent="vb", peer_mac="02:00:00:00:00:0a")) == mine
    assert not set(secrets(replace(LINK, name="a-c"))) & set(mine)


@pytest.mark.parametrize("wish", [{"cipher": "gcm-aes-256"}, {"cipher": "gcm-aes-xpn-128"}, {"offload": "mac"}])
def test_what_wpa_supplicant_cannot_do_is_refused(wish: dict[str, str]) -> None:
    with pytest.raises(DinnetError, match="wpa_supplicant's MKA"):
        configuration(replace(LINK, **wish), Secret(bytearray(range(32))))  # type: ignore[arg-type]
