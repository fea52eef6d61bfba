#include "server/engine/events.h"

#include <type_traits>

namespace cairn::engine {

static_assert(std::is_nothrow_move_constructible_v<Event::variant>);
Event::Event(const Event&) = default;
Event::Event(Event&&) noexcept = default;
Event& Event::operator=(const Event&) = default;
Event& Event::operator=(Event&&) noexcept = default;
Event::~Event() = default;

}  // namespace cairn::engine
