"""How a turn starts: which P, from whose KV, or on D alone.

    acquire from the D that has the history ─► direct: D computes the rest itself, under the lease
                                            └► prefill on P, which reads what it can verify ─► the D that decodes

The D that has the history and the D that decodes are two where a conversation moves: its own D is down, draining,
leaving or overloaded. As long as that one answers, the KV travels from it through P to the new one.
"""

from collections.abc import Mapping, Sequence
from time import perf_counter as now  # the event loop's clock counts whole milliseconds
from typing import Any, NamedTuple

from neuron_pd.core.transfer import first_leg
from neuron_pd.proxy import history
from neuron_pd.proxy.account import Account
from neuron_pd.proxy.bodies import Generate
from neuron_pd.proxy.engines import Engine, Role
from neuron_pd.proxy.errors import Refusal
from neuron_pd.proxy.http import Header, Request, StaleConnection
from neuron_pd.proxy.leases import Lease
from neuron_pd.proxy.legs import Prefilled, PrefillFailed
from neuron_pd.proxy.offers import Offers
from neuron_pd.proxy.router import Router
from neuron_pd.proxy.store import Known
from neuron_pd.proxy.ways import CANNOT_PREFILL, Direct, Offered

REUSE_HEADER, OFF = b"x-neuron-pd-reuse", b"off"
RANK_HEADER = b"x-data-parallel-rank"
PREFILL_ATTEMPTS = 3


class Start(NamedTuple):
    """Where a turn's prompt is: what P answered, or the lease under which D computes the rest.

    `ranks` are headers that send D's leg to the data-parallel rank that holds the history. `prefill` names the P that
    may hold `tokens` of the prompt from then on. D is `lacking` so many tokens of KV, about; 0 where that is not known.
    """

    prefilled: Prefilled | None = None
    lease: Lease | None = None
    offered: Offered | None = None
    ranks: tuple[Header, ...] = ()
    prefill: str = ""
    tokens: int = 0
    lacking: int = 0

    @property
    def direct(self) -> bool:
        return self.lease is not None


class Starter:
    """Starts one turn, more than once where an engine is lost on the way."""

    def __init__(
        self,
        router: Router,
        request: Request,
        call: Generate,
        account: Account,
        known: Known | None,
        offers: Offers | None,
    ) -> None:
        self.engines, self.legs, self.leases, self.ways = router.engines, router.legs, router.leases, router.ways
        self.request, self.call, self.account = request, call, account
        self.known = known
        self.offers = offers  # None: those of this turn are another conversation's

    async def start(self, decode: Engine) -> Start:
        """From the first P that does its part; each attempt has a lease of its own. Refusal when none does.

        A P that answers 5xx to what another P then does has failed; what none can do is the request's own fault.
        """
        failed: PrefillFailed | None = None
        blamed: list[Engine] = []
        avoid: list[Engine] = []
        for _ in range(PREFILL_ATTEMPTS):
            try:
                prefill = self._choose(avoid)
            except Refusal:
                if failed is None:
                    raise
                break
            try:
                start = await self._attempt(prefill, decode)
            except PrefillFailed as error:
                failed = error
                if error.answered:
                    blamed.append(prefill)
                if not isinstance(error.__cause__, StaleConnection):
                    avoid.append(prefill)
            else:
                for engine in blamed:
                    engine.breaker.failed()
                return start
        assert failed is not None
        raise failed.refusal from failed

    async def _attempt(self, prefill: Engine, decode: Engine) -> Start:
        lease, known = await self._acquire(prefill, decode), self.known
        offered = self._offered(prefill, decode, lease)
        if offered is None or lease is None or known is None:
            return await self._prefill_on(prefill, decode, lease)
        self.account.served_directly(offered, self.ways.mode)
        return Start(None, lease, offered, _rank(decode, lease.params), known.prefill, known.tokens)

    # ---- which P

    def _choose(self, avoid: list[Engine]) -> Engine:
        """The P that is through first: by its load, and by what it has of this conversation's last turn."""
        known, engines = self.known, self.engines
        if known is None or len(engines.prefill) == 1:
            return engines.for_prefill(avoid)
        last = engines.find(Role.PREFILL, known.prefill.partition("#")[0])
        if last is None:
            return engines.for_prefill(avoid)
        share = 1.0 if engines.holder(known.decode) is None else self.ways.read_share
        return engines.for_prefill(avoid, last.url, int(self._local(last) * share))

    def _local(self, prefill: Engine) -> int:
        """Tokens that this P may still hold."""
        known = self.known
        if known is None or known.prefill.partition("#")[0] != prefill.url:
            return 0
        return 0 if prefill.info is not None and not prefill.info.prefix_caching else known.tokens

    # ---- whose KV

    async def _acquire(self, prefill: Engine, decode: Engine) -> Lease | None:
        """A lease on what is left of this conversation's last turn; None, and the reason, for a cold start."""
        account, known = self.account, self.known
        holder = self.engines.holder(known.decode) if known else None
        account.reason = self._no_reuse(prefill, holder)
        if known is not None and known.handle and decode.url != known.decode:
            account.moved = True
        if known is None or holder is None or account.reason:
            return None
        account.phase, began = "acquire", now()
        with account.span.leg("acquire") as span:
            span.at(holder)
            lease = await self._lease(prefill, holder, known, span.headers)
            span.note(outcome="leased" if isinstance(lease, Lease) else lease)
        account.acquired(began)
        if isinstance(lease, Lease):
            return lease
        account.reason = lease
        return None

    async def _lease(self, prefill: Engine, holder: Engine, known: Known, extra: Sequence[Header]) -> Lease | str:
        """What D keeps for this turn, for one P; else a lease on what is still in its prefix cache."""
        if self.offers is not None and self.offers.usable(holder, prefill):
            lease = await self.offers.take(holder, known, self.call)
            if isinstance(lease, Lease) or holder.info is None:
                return lease
        return await self.leases.acquire(holder, known.handle, extra)

    def _no_reuse(self, prefill: Engine, holder: Engine | None) -> str:
        if self.request.get(REUSE_HEADER) == OFF:
            return "off"
        if self.known is None or not self.known.handle:
            return "none"
        if holder is None:
            return "decode_gone"
        if self.offers is not None and self.offers.usable(holder, prefill):
            return ""
        if not holder.reads_back:
            return "decode_without_reuse"
        return "" if prefill.reads_back else "prefill_without_reuse"

    def _offered(self, prefill: Engine, decode: Engine, lease: Lease | None) -> Offered | None:
        """The turn as D would serve it alone; None where it is not to."""
        ways, known = self.ways, self.known
        if ways.mode is Direct.OFF or lease is None or known is None or lease.engine is not decode:
            return None
        if decode.info is None or decode.info.accelerator in CANNOT_PREFILL:
            return None
        new = history.added(self.call.body, known.handle)
        if new is None:
            return None
        tokens = ways.tokens(len(new))
        offered = Offered(lease.tokens, tokens, self._local(prefill), decode.requests, prefill.load)
        return offered if ways.serve_directly(prefill.meters, decode.meters, offered) else None

    # ---- P's part

    async def _prefill_on(self, prefill: Engine, decode: Engine, lease: Lease | None) -> Start:
        account, nbytes = self.account, len(self.request.body)
        account.phase, began = "prefill", now()
        body = self.call.for_prefill(first_leg(lease.params if lease else None))
        held = lease.tokens if lease else self._local(prefill)
        weight = max(1, self.ways.tokens(nbytes) - held)
        unread = lease
        prefill.begin(weight)
        try:
            with account.span.leg("prefill") as span, self.leases.keeping(lease):
                span.at(prefill)
                extra = (*self._last_rank(prefill), *span.headers)
                answer = await self.legs.prefill(prefill, self.request, body, leased=lease is not None, extra=extra)
            report = answer.report
            if report is not None and report.reused > 0:
                unread = None  # P has read it, and D was told
        finally:
            prefill.end(weight)
            if unread is not None:
                self.leases.release(unread)
        prefill.without_params = answer.params is None
        account.offered = lease is not None
        seconds = account.prefilled(began, answer)
        tokens = lacking = 0
        if report is not None:
            self.ways.prefilled(prefill.meters, report, nbytes, seconds)
            tokens = lacking = report.prompt
        ranks: tuple[Header, ...] = ()
        if lease is not None and lease.engine is decode:
            ranks = _rank(decode, lease.params)
            lacking -= report.verified if report is not None else 0
        return Start(answer, ranks=ranks, prefill=prefilled_at(answer), tokens=tokens, lacking=lacking)

    def _last_rank(self, prefill: Engine) -> tuple[Header, ...]:
        """The rank of this P that served the last turn."""
        if self.known is None:
            return ()
        url, _, rank = self.known.prefill.partition("#")
        return ((RANK_HEADER, rank.encode()),) if rank and url == prefill.url and len(prefill.ranks) > int(rank) else ()


def prefilled_at(answer: Prefilled) -> str:
    """How a finished turn names its P: the URL, and the rank where there are several."""
    rank = _rank_of(answer.engine, answer.params or {})
    return answer.engine.url if rank is None else f"{answer.engine.url}#{rank}"


def _rank(engine: Engine, params: Mapping[str, Any]) -> tuple[Header, ...]:
    """The header for the rank that `params` name; none where there is one rank only."""
    rank = _rank_of(engine, params)
    return () if rank is None else ((RANK_HEADER, b"%d" % rank),)


def _rank_of(engine: Engine, params: Mapping[str, Any]) -> int | None:
    """The data-parallel rank that transfer parameters come from; None where there is one rank only."""
    if len(engine.ranks) < 2:
        return None
    engine_id = params.get("remote_engine_id")
    return engine.ranks.index(engine_id) if engine_id in engine.ranks else None
