#include "server/engine/peer_messages.h"

#include <type_traits>

namespace cairn::engine::peer {

static_assert(std::is_nothrow_move_constructible_v<Message::variant>);
Message::Message(const Message&) = default;
Message::Message(Message&&) noexcept = default;
Message& Message::operator=(const Message&) = default;
Message& Message::operator=(Message&&) noexcept = default;
Message::~Message() = default;

}  // namespace cairn::engine::peer
