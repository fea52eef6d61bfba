#include "server/engine/refusals.h"

namespace cairn::engine {
namespace {

constexpr size_t kMostOfAReason = 1000;

// What its own client gave up, or what was asked of another's job, is no refusal of the job's.
bool Counts(const Status& why) {
  return !why.ok() && !absl::IsCancelled(why) && !absl::IsPermissionDenied(why);
}

}  // namespace

const JobRefusals& Refusals::Of(const Job& job) {
  static const JobRefusals* const kNone = new JobRefusals();
  const uint32_t uid = job.refusals->uid;
  const bool owners = job.owner->owned && (uid == job.owner->uid || uid == 0);
  return owners || !job.owner->owned ? *job.refusals : *kNone;
}

void Refusals::Asked(const Caller& caller, const CheckpointKey& key) {
  const Session* session = sessions_.Find(caller.session);
  if (session != nullptr && session->job == key.job)
    asked_.try_emplace(caller.request, Request{caller, key});
}

void Refusals::See(const std::vector<Action>& actions) {
  if (asked_.empty()) return;
  for (const Action& action : actions) {
    const auto* reply = std::get_if<action::Reply>(&action);
    if (reply == nullptr) continue;
    const auto asked = asked_.find(reply->request);
    if (asked == asked_.end()) continue;
    const auto [caller, key] = std::move(asked->second);
    asked_.erase(asked);
    Job* job = Counts(reply->body.status()) ? jobs_.Find(key.job) : nullptr;
    if (job == nullptr || !Jobs::CheckAccess(*job, caller).ok()) continue;
    JobRefusals& refusals = job->refusals.Edit();
    if (refusals.uid != caller.uid && (!job->owner->owned || Of(*job).saves == 0)) refusals = {};
    refusals.uid = caller.uid;
    const CheckpointId id{key.step, key.attempt, key.revision};
    if (refusals.saves == 0 || refusals.newest != id) ++refusals.saves;
    refusals.newest = id;
    refusals.why = std::string(reply->body.status().message().substr(0, kMostOfAReason));
    refusals.unix_ms = out_.UnixMillis();
  }
}

}  // namespace cairn::engine
