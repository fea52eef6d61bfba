#include "tests/world/lone_node.h"

#include <algorithm>
#include <ctime>

#include "absl/strings/str_cat.h"

namespace cairn::world {

double ThreadMicros() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

// --- entering the engine

void LoneNode::Apply(Event event) {
  pending_.push_back(std::move(event));
  Drain();
  Pass(0);
}

void LoneNode::Drain() {
  while (!pending_.empty()) {
    Event next = std::move(pending_.front());
    pending_.pop_front();
    Carry(Enter(std::move(next)));
  }
}

void LoneNode::Carry(engine::Outcome outcome) {
  Keep(outcome.facts);
  for (engine::Action& action : outcome.actions) CarryOut(&action);
}

void LoneNode::Pass(MonotonicNanos by) {
  const MonotonicNanos until = now_ + by;
  for (;;) {
    const MonotonicNanos persist = persists_.empty() ? until + 1 : persists_.begin()->first;
    const MonotonicNanos wake = wake_at_ == 0 ? until + 1 : wake_at_;
    const MonotonicNanos next = std::min(persist, wake);
    if (next > until) break;
    now_ = std::max(now_, next);
    if (persist <= wake) {
      EndPersist();
    } else {
      wake_at_ = 0;
      pending_.push_back(event::Tick{});
    }
    Drain();
  }
  now_ = std::max(now_, until);
}

StatusOr<reply::Body> LoneNode::Answer(Event event, RequestId request) {
  awaited_ = request;
  answer_.reset();
  Apply(std::move(event));
  for (int i = 0; answer_ == nullptr && i < answers_within_s; ++i) Pass(kNanosPerSecond);
  awaited_ = 0;
  if (answer_ == nullptr) return absl::DeadlineExceededError("no answer came");
  return *std::move(answer_);
}

void LoneNode::SeeStorage() {
  event::StorageSeen seen;
  seen.root = storage_.root;
  if (storage_.away) seen.root = absl::UnavailableError("storage: nothing stands at the root");
  Apply(std::move(seen));
}

// --- processes

StatusOr<SessionId> LoneNode::Connect(event::Hello hello) {
  hello.caller = From(0);
  hello.secret = "secret";
  hello.pid = ++last_pid_;
  hello.process = absl::StrCat("process-", last_pid_);
  hello.process.resize(kProcessTokenBytes, ' ');
  const RequestId request = hello.caller.request;
  const StatusOr<reply::Hello> answer = Ask<reply::Hello>(std::move(hello), request);
  if (!answer.ok()) return answer.status();
  return answer->session;
}

void LoneNode::Disconnect(SessionId session) {
  users_.Died(session);
  Apply(event::SessionEnded{session});
}

// --- what the engine asks for

void LoneNode::Begin(Task task) {
  if (task.kind == Task::Kind::kPersist) {
    persists_.emplace(now_ + persist_takes, std::move(task.end));
    return;
  }
  if (task.kind == Task::Kind::kScan) Count("scans");
  if (task.kind == Task::Kind::kDelete) {
    Count(task.tombstone ? "files removed" : "files deleted by policy");
  }
  pending_.push_back(task.end(absl::OkStatus()));
}

void LoneNode::EndPersist() {
  const Task::End end = std::move(persists_.begin()->second);
  persists_.erase(persists_.begin());
  Event persisted = end(absl::OkStatus());
  Count(std::get<event::Persisted>(persisted).status.ok() ? "persisted" : "not persisted");
  pending_.push_back(std::move(persisted));
}

void LoneNode::Do(action::Reply& a) {
  Answered(a);
  if (a.request == awaited_) answer_ = std::make_unique<StatusOr<reply::Body>>(std::move(a.body));
}

}  // namespace cairn::world
