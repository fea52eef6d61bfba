#include "tests/sim/trace.h"

#include <type_traits>
#include <variant>

#include "absl/strings/str_cat.h"

namespace cairn::engine::sim {
namespace {

// The name of a type without its namespaces.
template <class T>
std::string NameOf() {
  const std::string function = __PRETTY_FUNCTION__;  // … [with T = cairn::fact::Pinned; …]
  const size_t from = function.find("T = ") + 4;
  const std::string name = function.substr(from, function.find_first_of(";]", from) - from);
  const size_t colon = name.rfind(':');
  return colon == std::string::npos ? name : name.substr(colon + 1);
}

// What of an event, fact or action tells one from another, where it has it.
template <class T>
std::string Details(const T& e) {
  std::string s;
  if constexpr (requires { e.caller.session; }) absl::StrAppend(&s, " session=", e.caller.session);
  if constexpr (requires { e.caller.request; }) absl::StrAppend(&s, " request=", e.caller.request);
  if constexpr (requires { e.request; }) absl::StrAppend(&s, " request=", e.request);
  if constexpr (requires { e.session + 0; }) absl::StrAppend(&s, " session=", e.session);
  if constexpr (requires { e.job.size(); }) absl::StrAppend(&s, " job=", e.job);
  if constexpr (requires { e.slab + 0; }) absl::StrAppend(&s, " slab=", e.slab);
  if constexpr (requires { e.bytes + 0; }) absl::StrAppend(&s, " bytes=", e.bytes);
  if constexpr (requires { e.lease + 0; }) absl::StrAppend(&s, " lease=", e.lease);
  if constexpr (requires { e.call + 0; }) absl::StrAppend(&s, " call=", e.call);
  if constexpr (requires { e.part.DebugString(); }) absl::StrAppend(&s, " ", e.part.DebugString());
  if constexpr (requires { e.checkpoint.DebugString(); })
    absl::StrAppend(&s, " ", e.checkpoint.DebugString());
  if constexpr (requires { e.ref.step; }) {
    absl::StrAppend(&s, " ref=", e.ref.job, "/", e.ref.step, "@", e.ref.attempt, ".",
                    e.ref.revision);
  }
  if constexpr (requires { e.name.size(); }) absl::StrAppend(&s, " name=", e.name);
  if constexpr (requires { e.attempt + 0; }) absl::StrAppend(&s, " attempt=", e.attempt);
  if constexpr (requires { e.lineage.open; }) {
    absl::StrAppend(&s, " from ", OriginText(e.lineage));
  }
  if constexpr (requires { e.record.lineage; }) {
    absl::StrAppend(&s, " ", e.record.job, " ", LineRecordName(e.record.number, e.record.kind),
                    " from ", OriginText(e.record.lineage));
  }
  if constexpr (requires { e.verification + 0; })
    absl::StrAppend(&s, " verification=", e.verification);
  if constexpr (requires { e.status.ok(); }) absl::StrAppend(&s, " ", e.status.ToString());
  if constexpr (requires { e.free; }) absl::StrAppend(&s, " free=", e.free);
  if constexpr (requires { e.extent.offset; }) {
    absl::StrAppend(&s, " at=", e.extent.slab, "+", e.extent.offset, ":", e.extent.length);
  }
  if constexpr (requires { e.body.ok(); }) {
    absl::StrAppend(
        &s, " ", e.body.ok() ? absl::StrCat("OK#", e.body->index()) : e.body.status().ToString());
  }
  if constexpr (requires { e.at + 0; }) absl::StrAppend(&s, " at=", e.at / 1000, "us");
  if constexpr (requires { e.message.size(); }) absl::StrAppend(&s, " ", e.message);
  if constexpr (requires { e.deadline + 0; })
    absl::StrAppend(&s, " deadline=", e.deadline / 1000, "us");
  return s;
}

template <class Variant>
std::string NameAndDetails(const Variant& variant) {
  return std::visit([](const auto& v) { return NameOf<std::decay_t<decltype(v)>>() + Details(v); },
                    variant);
}

}  // namespace

std::string Name(const Event& event) {
  return std::visit([](const auto& e) { return NameOf<std::decay_t<decltype(e)>>(); }, event);
}
std::string Describe(const Event& event) { return NameAndDetails(event); }
std::string Describe(const Fact& fact) { return NameAndDetails(fact); }
std::string Describe(const Action& action) { return NameAndDetails(action); }

}  // namespace cairn::engine::sim
