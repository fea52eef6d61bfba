#include "server/engine/outbox.h"

#include <utility>
#include <variant>

namespace cairn::engine {
namespace {

// Ids are set aside in the journal this many at a time, so that none is ever given twice.
constexpr uint64_t kIdsAtOnce = 4096;

}  // namespace

void Outbox::Answer(RequestId request, StatusOr<Body> body, Attempt superseded_by) {
  action::Reply reply;
  reply.request = request;
  reply.body = std::move(body);
  reply.superseded_by = superseded_by;
  Do(std::move(reply));
}

void Outbox::Log(Severity severity, std::string message) {
  Do(action::Log{severity, std::move(message)});
}

void Outbox::ReplaceAnswers(const std::function<bool(const Body&)>& chosen, const Status& instead) {
  for (Action& action : outcome_.actions) {
    auto* reply = std::get_if<action::Reply>(&action);
    if (reply == nullptr || !reply->body.ok()) continue;
    if (chosen(*reply->body)) reply->body = instead;
  }
}

uint64_t Outbox::NextId() {
  if (next_id_ >= ids_reserved_) {
    ids_reserved_ = next_id_ + kIdsAtOnce;
    Say(fact::DaemonLife{start_unix_ms_, ids_reserved_});
  }
  return next_id_++;
}

void Outbox::Begin(MonotonicNanos now, int64_t unix_ms) {
  now_ = start_now_ = now;
  start_unix_ms_ = unix_ms;
}

void Outbox::Snapshot(std::vector<Fact>* facts) const {
  facts->push_back(fact::DaemonLife{start_unix_ms_, ids_reserved_});
}

}  // namespace cairn::engine
