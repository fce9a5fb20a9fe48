"""The intent: all that an operator wants of the network, in one file, checked before anything is touched."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Self

from pydantic import BaseModel, Field, model_validator

from dinnet.controller.intent_slices import SLICES, Dscp, Link, Policy, Slice, Target
from dinnet.controller.intent_switch import STRICT, Switch
from dinnet.controller.values import Endpoint, Interface, Name, RateBps, of
from dinnet.yamlfile import Misplaced, load_yaml

CLASSES: Final = ("prefill", "decode", "control", "data")


class Host(BaseModel):
    """A host whose queues the controller sets, in a network namespace of this machine."""

    model_config = STRICT
    netns: str | None = Field(default=None, min_length=1)  # a name as in `ip netns`; None: where the controller runs
    interfaces: tuple[Interface, ...] = Field(min_length=1)


class Classifier(BaseModel):
    """How live flows become marks."""

    model_config = STRICT
    enabled: bool = True
    model: Path | None = None  # folder, relative to the intent file; None: the shipped one
    threshold: float = Field(default=0.7, gt=0.2, le=1)  # what is less sure stays unclassified
    sure: float = Field(default=0.85, gt=0.2, le=1)  # from here one checkpoint is enough to change a class
    patience: int = Field(default=2, ge=1, le=100)  # as many checkpoints in turn otherwise
    idle_s: float = Field(default=60, ge=1, le=86_400)  # without a packet, then the mark is taken away
    batch: int = Field(default=256, ge=1, le=4096)  # digests in one list
    digest_delay_ms: float = Field(default=1, ge=0, le=1000)  # the longest that a switch waits to fill a list


class Buckets(BaseModel):
    """Token buckets of marked micro-flows: a slice's bandwidth at a switch, shared among them."""

    model_config = STRICT
    slices: dict[Name, RateBps] = Field(min_length=1)  # all micro-flows of the slice together
    burst_ms: float = Field(default=20, ge=1, le=1000)
    interval_s: float = Field(default=1, ge=0.1, le=60)
    report_ttl_s: float = Field(default=10, gt=0, le=3600)  # an inference node's report counts for so long
    token_file: Path | None = None  # bearer token that reports must show, one line, mode 0600


class Controller(BaseModel):
    """The controller's own matters."""

    model_config = STRICT
    election_id: int = Field(default=1, ge=1, le=2**64 - 1)  # the highest of several controllers is in charge
    api: Endpoint = "unix:/run/dinnet-controller.sock"
    metrics: Endpoint | None = None  # Prometheus; loopback is meant
    resync_s: float = Field(default=30, ge=0.2, le=3600)  # between read-backs of a switch or host


class Intent(BaseModel):
    model_config = STRICT
    controller: Controller = Controller()
    switches: dict[Name, Switch] = {}
    hosts: dict[Name, Host] = {}
    slices: dict[Name, Slice] = Field(default=SLICES, min_length=1)
    links: dict[Name, Link] = {}
    policy: Policy = Policy()
    dscp: tuple[Dscp, ...] = ()
    classifier: Classifier = Classifier()
    token_buckets: Buckets | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self._check_slices()
        self._check_ends()
        self._check_rates()
        self._check_targets()
        self._check_switches()
        self._check_dscp()
        return self

    def _check_slices(self) -> None:
        numbers: dict[int, str] = {}
        for name, each in self.slices.items():
            if each.number in numbers:
                raise Misplaced(f"{each.number} is the number of {numbers[each.number]}", "slices", name, "number")
            numbers[each.number] = name
        if 0 not in numbers:
            raise Misplaced("no slice has the number 0, which is for everything else", "slices")
        if (more := len(self.slices)) > 16:
            raise Misplaced(f"{more} slices; there can be 16", "slices")

    def _check_ends(self) -> None:
        taken: dict[tuple[str, int | str], str] = {}
        for name, link in self.links.items():
            for place, text in enumerate(link.ends):
                where = ("links", name, "ends", place)
                end = self.end(text)
                if end is None:
                    raise Misplaced(f"{text}: {self._why_no_end(text)}", *where)
                if end in taken:
                    raise Misplaced(f"{text} is an end of link {taken[end]}", *where)
                taken[end] = name
        spaces: dict[str | None, str] = {}
        for name, host in self.hosts.items():
            if (other := spaces.setdefault(host.netns, name)) != name:
                which = f"network namespace {host.netns}" if host.netns else "this machine"
                raise Misplaced(f"{which} is host {other} already", "hosts", name)
            for number, device in enumerate(host.interfaces):
                if host.interfaces.index(device) != number:
                    raise Misplaced(f"{device} is there twice", "hosts", name, "interfaces", number)

    def end(self, text: str) -> tuple[str, int | str] | None:
        """(host, interface) or (switch, port number) that an end names."""
        name, _, rest = text.partition("/")
        if name in self.hosts and rest in self.hosts[name].interfaces:
            return name, rest
        if name in self.switches and rest.isdecimal() and int(rest) in self.switches[name].ports:
            return name, int(rest)
        return None

    def _why_no_end(self, text: str) -> str:
        name, slash, rest = text.partition("/")
        if not slash:
            return "an end is HOST/INTERFACE or SWITCH/PORT"
        if name in self.hosts:
            return f"host {name} has no interface {rest}"
        if name in self.switches:
            return f"switch {name} has no port {rest}"
        return f"there is no host and no switch {name}"

    def _check_rates(self) -> None:
        for name, link in self.links.items():
            for other in link.slices:
                if other not in self.slices:
                    raise Misplaced(f"there is no slice {other}", "links", name, "slices", other)
            total = 0
            for label in self.slices:
                guarantee, ceiling = self.share_of(link, label)
                where = ("links", name, "slices", label) if label in link.slices else ("links", name, "rate")
                if guarantee > ceiling:
                    raise Misplaced(
                        f"slice {label}: guarantee {guarantee} bit/s is above its ceiling {ceiling} bit/s", *where
                    )
                if ceiling > link.rate:
                    raise Misplaced(f"slice {label}: ceiling {ceiling} bit/s is above the link's rate", *where)
                total += guarantee
                self._check_queues(label, guarantee, ceiling)
            if total > link.rate:
                raise Misplaced(
                    f"the slices' guarantees do not fit: {total} bit/s of {link.rate} bit/s", "links", name, "rate"
                )

    def _check_queues(self, label: str, guarantee: int, ceiling: int) -> None:
        total = 0
        for tc, queue in self.slices[label].queues.items():
            own, most = of(queue.guarantee, guarantee), of(queue.ceiling, ceiling)
            where = ("slices", label, "queues", tc)
            if own > most or most > ceiling:
                raise Misplaced(
                    f"guarantee {own}, ceiling {most}, slice's ceiling {ceiling} bit/s: out of order",
                    *where,
                )
            total += own
        if total > guarantee:
            raise Misplaced(
                f"the queues' guarantees do not fit: {total} bit/s of {guarantee} bit/s", "slices", label, "queues"
            )

    def share_of(self, link: Link, label: str) -> tuple[int, int]:
        """Guarantee and ceiling of a slice on a link, bits a second."""
        given, here = self.slices[label], link.slices.get(label)
        guarantee = here.guarantee if here is not None and here.guarantee is not None else given.guarantee
        ceiling = here.ceiling if here is not None and here.ceiling is not None else given.ceiling
        return of(guarantee, link.rate), of(ceiling, link.rate)

    def _check_targets(self) -> None:
        for name in CLASSES:
            self._check_target(getattr(self.policy, name), "policy", name)
        client = self.policy.client_slice
        if client is not None:
            if client not in self.slices:
                raise Misplaced(f"there is no slice {client}", "policy", "client_slice")
            if not self.policy.inference:
                raise Misplaced("say in policy.inference where inference nodes are", "policy", "client_slice")
            for name in ("prefill", "decode"):
                self._check_target(Target(slice=client, tc=getattr(self.policy, name).tc), "policy", "client_slice")
        for name in self.token_buckets.slices if self.token_buckets else ():
            if name not in self.slices:
                raise Misplaced(f"there is no slice {name}", "token_buckets", "slices", name)

    def _check_target(self, target: Target, *where: int | str) -> None:
        if target.slice not in self.slices:
            raise Misplaced(f"there is no slice {target.slice}", *where)
        if target.tc not in self.slices[target.slice].queues:
            raise Misplaced(f"slice {target.slice} has no queue for tc {target.tc}", *where)

    def _check_switches(self) -> None:
        seen: dict[tuple[str, int], str] = {}
        for name, switch in self.switches.items():
            if (other := seen.setdefault((switch.address, switch.device_id), name)) != name:
                raise Misplaced(f"device {switch.device_id} at this address is switch {other}", "switches", name)
            if name in self.hosts:
                raise Misplaced("a host has this name", "switches", name)
            for place, rule in enumerate(switch.rules):
                self._check_target(Target(slice=rule.slice, tc=rule.tc), "switches", name, "rules", place)
            for label in switch.reroute:
                if label not in self.slices:
                    raise Misplaced(f"there is no slice {label}", "switches", name, "reroute", label)
            for label, each in self.slices.items():
                if "reroute" in (each.exceed.microflow, each.exceed.slice) and label not in switch.reroute:
                    raise Misplaced(f"slice {label} reroutes what exceeds; say where to", "switches", name)

    def _check_dscp(self) -> None:
        marks: set[tuple[str, int]] = set()
        codes: set[int] = set()
        for place, each in enumerate(self.dscp):
            self._check_target(Target(slice=each.slice, tc=each.tc), "dscp", place)
            if (each.slice, each.tc) in marks:
                raise Misplaced(f"slice {each.slice}, tc {each.tc} has a DSCP already", "dscp", place)
            if each.dscp in codes:
                raise Misplaced(f"DSCP {each.dscp} is there already", "dscp", place)
            marks.add((each.slice, each.tc))
            codes.add(each.dscp)


def load_intent(path: Path, folder: Path | None = None) -> Intent:
    """Read an intent file; paths in it are relative to it, or to `folder`.

    Raises:
        DinnetError: It cannot be read, or something in it is wrong; with file, line and reason.
    """
    intent = load_yaml(path, Intent)
    folder = folder or path.parent
    switches = {}
    for name, switch in intent.switches.items():
        if switch.tls is not None:
            places = {key: folder / place for key, place in switch.tls if place is not None}
            switch = switch.model_copy(update={"tls": switch.tls.model_copy(update=places)})
        switches[name] = switch
    changed: dict[str, object] = {"switches": switches}
    if intent.classifier.model is not None:
        changed["classifier"] = intent.classifier.model_copy(update={"model": folder / intent.classifier.model})
    if intent.token_buckets is not None and intent.token_buckets.token_file is not None:
        token = folder / intent.token_buckets.token_file
        changed["token_buckets"] = intent.token_buckets.model_copy(update={"token_file": token})
    return intent.model_copy(update=changed)
