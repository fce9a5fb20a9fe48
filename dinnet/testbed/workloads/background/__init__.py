"""Traffic that is not inference, and that must come out as unclassified."""

from __future__ import annotations

from dinnet.testbed.workloads.background.datagrams import DATAGRAMS
from dinnet.testbed.workloads.background.people import PEOPLE
from dinnet.testbed.workloads.background.services import SERVICES
from dinnet.testbed.workloads.background.web import WEB
from dinnet.testbed.workloads.base import Workload

BACKGROUND: tuple[type[Workload], ...] = (*WEB, *SERVICES, *PEOPLE, *DATAGRAMS)
