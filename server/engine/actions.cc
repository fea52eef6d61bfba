#include "server/engine/actions.h"

#include <type_traits>

namespace cairn::engine {

namespace reply {

static_assert(std::is_nothrow_move_constructible_v<Body::variant>);
Body::Body(const Body&) = default;
Body::Body(Body&&) noexcept = default;
Body& Body::operator=(const Body&) = default;
Body& Body::operator=(Body&&) noexcept = default;
Body::~Body() = default;

}  // namespace reply

static_assert(std::is_nothrow_move_constructible_v<Action::variant>);
Action::Action(const Action&) = default;
Action::Action(Action&&) noexcept = default;
Action& Action::operator=(const Action&) = default;
Action& Action::operator=(Action&&) noexcept = default;
Action::~Action() = default;

}  // namespace cairn::engine
