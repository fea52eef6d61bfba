// Between what members of a ring say to each other (engine/peer_messages.h) and proto/peer.thrift.
//
// Members are trusted to mean well, not to be of this build or in order: all that comes in is checked here,
// except what only the engine's state can tell. A refusal is INVALID_ARGUMENT and names the field, the value
// and the limit; then nothing of the message counts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"
#include "peer_types.h"
#include "server/engine/peer_messages.h"
#include "server/engine/ring.h"

namespace cairn::rpc {

peerwire::Member ToPeerWire(const engine::MemberId& member);
StatusOr<engine::MemberId> FromPeerWire(const peerwire::Member& member);

peerwire::RingView ToPeerWire(const engine::RingView& view);
StatusOr<engine::RingView> FromPeerWire(const peerwire::RingView& view);

peerwire::Message ToPeerWire(const engine::peer::Message& message);
StatusOr<engine::peer::Message> FromPeerWire(peerwire::Message message);

// `timeout_ms` is the caller's to set and to read.
peerwire::GrantQuestion ToPeerWire(const engine::peer::GrantQuestion& question);
StatusOr<engine::peer::GrantQuestion> FromPeerWire(const peerwire::GrantQuestion& question);

peerwire::Granted ToPeerWire(engine::peer::GrantAnswer answer);
StatusOr<engine::peer::GrantAnswer> FromPeerWire(peerwire::Granted granted);

StatusOr<std::vector<uint64_t>> GrantsFromWire(const std::vector<int64_t>& grants);

}  // namespace cairn::rpc
