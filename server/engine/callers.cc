#include "server/engine/callers.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/journal_use.h"

namespace cairn::engine {

Callers::~Callers() = default;

bool Callers::Park(Waitlist* list, const Caller& caller, const std::string& job,
                   MonotonicNanos deadline, Event event) {
  if (Status full = CheckRoom(caller); !full.ok()) {
    out_.Answer(caller.request, std::move(full));
    return false;
  }
  users_.Add(caller.uid);
  auto parked = std::make_unique<Parked>();
  parked->request = caller.request;
  parked->session = caller.session;
  parked->uid = caller.uid;
  parked->job = job;
  parked->deadline = deadline;
  parked->list = list;
  parked->event = std::move(event);
  deadlines_.insert({deadline, caller.request});
  of_session_[caller.session].insert(caller.request);
  parked_[caller.request] = std::move(parked);
  return true;
}

const Parked* Callers::Find(RequestId request) const {
  const auto at = parked_.find(request);
  return at == parked_.end() ? nullptr : at->second.get();
}

void Callers::SetDeadline(RequestId request, MonotonicNanos deadline) {
  Parked* parked = parked_.at(request).get();
  deadlines_.erase({parked->deadline, request});
  parked->deadline = deadline;
  deadlines_.insert({deadline, request});
}

std::unique_ptr<Parked> Callers::Unpark(RequestId request) {
  const auto at = parked_.find(request);
  if (at == parked_.end()) return nullptr;
  std::unique_ptr<Parked> parked = std::move(at->second);
  parked_.erase(at);
  deadlines_.erase({parked->deadline, request});
  users_.Drop(parked->uid);
  jobs_left_.insert(parked->job);
  const auto of_session = of_session_.find(parked->session);
  of_session->second.erase(request);
  if (of_session->second.empty()) of_session_.erase(of_session);
  parked->list->Left(*parked);
  return parked;
}

void Callers::Answer(RequestId request, StatusOr<Body> body, Attempt superseded_by) {
  if (Unpark(request) != nullptr) out_.Answer(request, std::move(body), superseded_by);
}

void Callers::HangUp(RequestId request) {
  const Parked* parked = Find(request);
  if (parked == nullptr) return;
  const bool goes_on = std::visit(
      [](const auto& e) { return JournalUseOf<std::decay_t<decltype(e)>>().is_a_promise; },
      parked->event);
  if (goes_on && !parked->list->NothingHasBegun()) return;
  Answer(request, absl::CancelledError("its caller has gone"));
}

void Callers::CancelCreates(SessionId session, const PartKey& part, const Status& why) {
  for (RequestId request : Of(session)) {
    const Parked* parked = Find(request);
    const auto* create = parked == nullptr ? nullptr : std::get_if<event::Create>(&parked->event);
    if (create == nullptr || !(create->part == part)) continue;
    if (parked->list->NothingHasBegun()) Answer(request, why);
  }
}

void Callers::Expire() {
  while (!deadlines_.empty() && deadlines_.begin()->first <= out_.now()) {
    const Parked& parked = *parked_.at(deadlines_.begin()->second);
    parked.list->TimeUp(parked);
  }
}

std::set<std::string> Callers::JobsAwaited() const {
  std::set<std::string> jobs;
  for (const auto& [request, parked] : parked_) jobs.insert(parked->job);
  return jobs;
}

std::set<RequestId> Callers::Of(SessionId session) const {
  const auto at = of_session_.find(session);
  return at == of_session_.end() ? std::set<RequestId>() : at->second;
}

std::string Callers::CheckInvariants(const std::function<bool(SessionId)>& lives) const {
  for (const auto& [request, parked] : parked_) {
    if (!deadlines_.contains({parked->deadline, request})) return "a caller without a deadline";
    if (!lives(parked->session)) return "a caller without a session";
  }
  if (deadlines_.size() != parked_.size()) return "deadlines without callers";
  if (users_.total() != static_cast<int64_t>(parked_.size())) return "users' callers do not add up";
  size_t of_sessions = 0;
  for (const auto& [session, requests] : of_session_) of_sessions += requests.size();
  if (of_sessions != parked_.size()) return "sessions wait with callers that are gone";
  return "";
}

}  // namespace cairn::engine
