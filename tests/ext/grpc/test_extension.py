from modelserver.ext.grpc.extension import GrpcListener


async def test_listener_that_never_opened_can_be_closed():
    nothing = None
    listener = GrpcListener(nothing, nothing, [])
    listener.certify(nothing)
    await listener.refuse()
    await listener.close(1.0)

    assert listener._servers is None
