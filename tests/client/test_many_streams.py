"""Hundreds of streams at once on one connection. Each can be cancelled without affecting the others."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from inflight_client import AsyncClient, Client, RequestCancelled
from scripts.launch.triton_server import TritonServer
from tests.client.test_cancellation import cancelled, cancelled_before, our_threads
from tests.eventually import eventually

STREAMS = 500
PROMPT = "!gap 400 !forever"


def test_threads(server: TritonServer) -> None:
    before_threads = our_threads()
    with Client(server.grpc_url) as client, ThreadPoolExecutor(STREAMS) as pool:
        before = cancelled_before(client)
        everybody = threading.Barrier(STREAMS)

        def run(number: int) -> int:
            with client.stream(PROMPT) as stream:
                next(stream)
                everybody.wait(60)
                # The streams are cancelled at different times while the others continue.
                return sum(1 for _, _ in zip(stream, range(number % 5), strict=False))

        assert list(pool.map(run, range(STREAMS))) == [number % 5 for number in range(STREAMS)]
        assert eventually(lambda: cancelled(client) == before + STREAMS)
    assert eventually(lambda: our_threads() <= before_threads)


def test_tasks(server: TritonServer) -> None:
    async def run_all() -> None:
        async with AsyncClient(server.grpc_url) as client:
            before = int((await client.generate("!cancelled")).text)
            streams = [client.stream(PROMPT) for _ in range(STREAMS)]
            await asyncio.gather(*(anext(stream) for stream in streams))
            leaving, staying = streams[::2], streams[1::2]
            readers = [asyncio.create_task(stream.completion()) for stream in leaving]
            await asyncio.gather(*(anext(stream) for stream in staying))
            for stream in leaving:
                await stream.cancel()
            ends = await asyncio.gather(*readers, return_exceptions=True)
            assert [type(end) for end in ends] == [RequestCancelled] * len(leaving)
            # The streams that were not cancelled continue. Then cancelling a task that reads cancels its stream.
            assert {chunk.text for chunk in await asyncio.gather(*(anext(s) for s in staying))} == {"tick "}
            readers = [asyncio.create_task(stream.completion()) for stream in staying]
            await asyncio.sleep(0)
            for reader in readers:
                reader.cancel()
            ends = await asyncio.gather(*readers, return_exceptions=True)
            assert [type(end) for end in ends] == [asyncio.CancelledError] * len(staying)
            async with asyncio.timeout(60):
                while int((await client.generate("!cancelled")).text) < before + STREAMS:
                    await asyncio.sleep(0.05)
            for stream in streams:
                await stream.__aexit__(None, None, None)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    before_threads = our_threads()
    asyncio.run(run_all())
    assert our_threads() <= before_threads
