#include "server/engine/refusals.h"

namespace cairn::engine {
namespace {

constexpr size_t kMostOfAReason = 1000;

// What its own client gave up, or what was asked of another's job, is no refusal of the job's.
bool Counts(const Status& why) {
  return !why.ok() && !absl::IsCancelled(why) && !absl::IsPermissionDenied(why);
}

}  // namespace

void Refusals::Asked(const Caller& caller, const CheckpointKey& key) {
  const Session* session = sessions_.Find(caller.session);
  if (session != nullptr && session->job == key.job) asked_.try_emplace(caller.request, key);
}

void Refusals::See(const std::vector<Action>& actions) {
  if (asked_.empty()) return;
  for (const Action& action : actions) {
    const auto* reply = std::get_if<action::Reply>(&action);
    if (reply == nullptr) continue;
    const auto asked = asked_.find(reply->request);
    if (asked == asked_.end()) continue;
    const CheckpointKey key = std::move(asked->second);
    asked_.erase(asked);
    Job* job = Counts(reply->body.status()) ? jobs_.Find(key.job) : nullptr;
    if (job == nullptr) continue;
    JobRefusals& refusals = job->refusals.Edit();
    const CheckpointId id{key.step, key.attempt, key.revision};
    if (refusals.saves == 0 || refusals.newest != id) ++refusals.saves;
    refusals.newest = id;
    refusals.why = std::string(reply->body.status().message().substr(0, kMostOfAReason));
    refusals.unix_ms = out_.UnixMillis();
  }
}

}  // namespace cairn::engine
