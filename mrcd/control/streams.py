# SPDX-License-Identifier: GPL-2.0-only
"""Handle the calls and streams of one connection to the control socket, and limit bad clients.

A client that does not read harms no other client. A stream takes the next sample or event only when
the previous one has been sent, and the next call is handled only when the replies to earlier calls
have been sent. At most one reply of each call therefore waits in the daemon. A client that sends
without end is disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import msgspec
from asyncvarlink import (
    FileDescriptor,
    FileDescriptorArray,
    VarlinkInterfaceRegistry,
    VarlinkInterfaceServerProtocol,
    VarlinkMethodCall,
    VarlinkMethodReply,
    VarlinkMethodSignature,
)
from asyncvarlink.conversion import ConversionError, FileDescriptorVarlinkType
from asyncvarlink.interface import AnnotatedResult
from asyncvarlink.serviceerrors import ExpectedMore
from asyncvarlink.serviceinterface import InvalidParameter
from asyncvarlink.types import JSONObject

from mrcd.control.access import Access, Caller, is_writing
from mrcd.control.errors import Internal, NotPermitted
from mrcd.control.parts import Closing, comes_in_parts, joined
from mrcd.service.log import debugging, get_logger

CALL_MAX_BYTES = 1 << 20
"""Limit on the size of one call; the largest call carries a configuration."""
CALLS_MAX = 64
"""Limit on the calls that wait behind the one being answered."""

log = get_logger()


class ControlProtocol(VarlinkInterfaceServerProtocol):
    """One connection.

    Streams run here instead of in the library. The library does not await ``aclose`` of a generator
    whose client is gone, and leaves the streams of closed connections asleep until their next
    sample.
    """

    def __init__(
        self,
        registry: VarlinkInterfaceRegistry,
        access: Access,
        caller: Caller,
        on_gone: Callable[[ControlProtocol], None],
    ) -> None:
        super().__init__(registry)
        self.caller = caller
        self._lookup_stream = registry.lookup_method
        self._access = access
        self._on_gone = on_gone
        self._streams: set[asyncio.Future[None]] = set()
        self._lists: set[asyncio.Future[None]] = set()  # in parts; further calls wait meanwhile
        self._unsent: set[asyncio.Future[None]] = set()
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unfinished = 0  # bytes of a call that has not arrived completely
        self._waiting = 0  # calls that have arrived and are not being handled yet

    # ---- calls

    def message_received(self, data: bytes, fds: FileDescriptorArray | None) -> None:
        """Check the limits on part of a call, or on several calls, and pass the data on."""
        head, *ended = data.split(b"\0")
        self._waiting += len(ended)
        self._unfinished = len(ended[-1]) if ended else self._unfinished + len(head)
        if self._unfinished > CALL_MAX_BYTES:
            self._hang_up(f"a call of more than {CALL_MAX_BYTES} bytes")
        elif self._waiting > CALLS_MAX:
            self._hang_up(f"more than {CALLS_MAX} calls without waiting for a reply")
        else:
            try:
                super().message_received(data, fds)
            except (ValueError, RecursionError) as error:  # those that the library does not catch
                self._hang_up(f"what it sent is no call: {error}")

    def error_received(self, err: Exception, data: bytes, fds: FileDescriptorArray | None) -> None:
        """Disconnect a client that does not speak varlink; it would wait for a reply for ever."""
        self._hang_up(f"what it sent is no call: {err}")

    def request_received(
        self, obj: dict[str, Any], fds: FileDescriptorArray | None
    ) -> asyncio.Future[None] | None:
        """Answer a call; the next call waits until the reply has been sent."""
        self._waiting -= 1
        if not _whole(obj):
            self._hang_up("what it sent is no call: a text in it ends within a character")
            return None
        if self._streams:  # the reply would have to wait for the end of the stream
            self._hang_up("a call on a connection that streams; it needs one of its own")
            return None
        answering = super().request_received(obj, fds)
        if answering is None and not self._unsent:
            return None
        return asyncio.ensure_future(self._sent(answering))

    async def _sent(self, answering: asyncio.Future[None] | None) -> None:
        if answering is not None:
            await self._until({answering})
        while self._unsent and not self._gone.done():
            await self._until(self._unsent)

    async def _until(self, done: set[asyncio.Future[None]]) -> None:
        """Wait until one of them is done; a connection that is gone leaves replies pending."""
        await asyncio.wait({*done, self._gone}, return_when=asyncio.FIRST_COMPLETED)

    def send_reply(
        self, reply: VarlinkMethodReply, fds: list[int] | None = None, autoclose: bool = True
    ) -> asyncio.Future[None]:
        """Queue a reply."""
        sent: asyncio.Future[None] = super().send_reply(reply, fds, autoclose)
        self._unsent.add(sent)
        sent.add_done_callback(self._unsent.discard)
        return sent

    def call_received(
        self, call: VarlinkMethodCall, fds: FileDescriptorArray | None
    ) -> asyncio.Future[None] | None:
        """Look a method up, check that the caller may call it, and run it."""
        method, signature, parts = self._lookup(call)
        if is_writing(method) and not self._access.may_write(self.caller):
            raise NotPermitted(
                method=call.method_name, uid=self.caller.uid, writers=self._access.writers
            )
        if debugging():
            caller = self.caller
            log.debug("control.called", method=call.method_name, uid=caller.uid, pid=caller.pid)
        try:
            parameters = signature.parameter_type.fromjson(call.parameters)
        except ConversionError as error:
            raise InvalidParameter(parameter=_where(error)) from error
        if parts and not call.more:
            return asyncio.ensure_future(self._reply_to(call, joined(method(**parameters))))
        if not signature.more:
            result = method(**parameters)
            if signature.asynchronous:
                return asyncio.ensure_future(self._reply_to(call, result))
            self._reply(call, result)
            return None
        stream = asyncio.ensure_future(self._stream(method, signature, parameters))
        among = self._lists if parts else self._streams
        among.add(stream)
        stream.add_done_callback(among.discard)
        if parts:
            return stream
        # The library stops reading while a call runs, and would not notice that its caller left.
        asyncio.get_running_loop().call_soon(self._listen)
        return stream

    def _lookup(
        self, call: VarlinkMethodCall
    ) -> tuple[Callable[..., Any], VarlinkMethodSignature, bool]:
        """Return a method, its signature, and whether its replies are parts of one."""
        method, signature = self._lookup_stream(replace(call, more=True))
        parts = comes_in_parts(method)
        if signature.more and not (call.more or parts):
            raise ExpectedMore()
        return method, signature, parts

    async def _reply_to(self, call: VarlinkMethodCall, answer: Awaitable[AnnotatedResult]) -> None:
        self._reply(call, await answer)

    def _reply(self, call: VarlinkMethodCall, result: AnnotatedResult) -> None:
        if not call.oneway:
            self.send_reply(VarlinkMethodReply(dict(result.parameters)))

    def send_message(
        self, obj: JSONObject, fds: list[int] | None = None, autoclose: bool = True
    ) -> asyncio.Future[None]:
        """Queue a message; `fds` remain the caller's.

        This encodes the methods' results as JSON directly. The library would make an object for
        each value, which takes seconds for thousands of peers.
        """
        if self._transport is None:
            gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            gone.set_exception(BrokenPipeError())
            return gone
        data = msgspec.json.encode(obj) + b"\0"
        sent: asyncio.Future[None] = self._transport.send_message(data, fds)
        return sent

    def _listen(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    async def _stream(
        self,
        method: Callable[..., Any],
        signature: VarlinkMethodSignature,
        parameters: dict[str, Any],
    ) -> None:
        # A broken pipe and a cancellation both mean that the client no longer listens.
        with contextlib.suppress(OSError, asyncio.CancelledError):
            async with Closing(method(**parameters)) as results:
                async for result in results:
                    with FileDescriptorArray.new_managed() as fds:
                        body = dict(result.parameters)
                        if any(isinstance(value, FileDescriptor) for value in body.values()):
                            body = signature.return_type.tojson(
                                body, {FileDescriptorVarlinkType: fds}
                            )
                        reply = VarlinkMethodReply(body, continues=result.continues)
                        numbers = [fd.fileno() for fd in fds]
                        sent = self.send_reply(reply, numbers, autoclose=False)
                        fds.reference_until_done(sent)
                    # Shielded, because the transport fails on a cancelled future in its queue.
                    await asyncio.shield(sent)

    def handle_call_exception(self, exc: BaseException, oneway: bool) -> None:
        """Log a bug in a method before reporting it to the caller."""
        log.error("control.call_failed", error=repr(exc), exc_info=exc)
        raise Internal(message=f"{type(exc).__name__}: {exc}")

    # ---- the end

    def _hang_up(self, reason: str) -> None:
        log.warning(
            "control.client_dropped", reason=reason, uid=self.caller.uid, pid=self.caller.pid
        )
        self.abort()

    def abort(self) -> None:
        """Close the connection at once; unsent data is lost."""
        if self._transport is not None:
            self._transport.abort()

    def eof_received(self) -> None:
        """End the streams of a caller that is gone; an idle stream would never notice."""
        self._end_streams()
        super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the streams of a closed connection, and report its end."""
        self._end_streams()
        super().connection_lost(exc)
        if not self._gone.done():
            self._gone.set_result(None)
        self._on_gone(self)

    async def ended(self) -> None:
        """Cancel all streams, and wait until none runs."""
        self._end_streams()
        await asyncio.gather(*self._streams, *self._lists, return_exceptions=True)

    def _end_streams(self) -> None:
        for stream in (*self._streams, *self._lists):
            stream.cancel()


def _whole(obj: JSONObject) -> bool:
    """Return whether all texts can be written: JSON may have half a character (a lone surrogate).

    No reply could repeat such a text, and no log.
    """
    try:
        json.dumps(obj, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _where(error: ConversionError) -> str:
    return ".".join(str(step) for step in error.location) or error.message
