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
  for (engine::Action& any : outcome.actions) std::visit([this](auto& a) { Do(a); }, any);
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

void LoneNode::Do(action::Reply& a) {
  Answered(a);
  if (a.request == awaited_) answer_ = std::make_unique<StatusOr<reply::Body>>(std::move(a.body));
}

void LoneNode::Do(action::MakeSlab& a) {
  Made(a.slab, a.bytes);
  pending_.push_back(event::SlabMade{a.slab, absl::OkStatus()});
}

void LoneNode::Do(action::DestroySlab& a) {
  users_.Destroyed(a.slab);
  Destroyed(a.slab);
  pending_.push_back(event::SlabDestroyed{a.slab});
}

void LoneNode::Do(action::WriteManifest& a) {
  std::string encoded = EncodeManifest(*a.table);
  std::string digest = ManifestDigest(encoded);
  Written(a, std::move(encoded));
  pending_.push_back(event::ManifestWritten{a.part, a.extent, absl::OkStatus(), std::move(digest)});
}

void LoneNode::Do(action::Verify& a) {
  pending_.push_back(event::Verified{a.verification, absl::OkStatus(), unix_ms()});
}

void LoneNode::Do(action::Persist& a) { persists_.emplace(now_ + persist_takes, std::move(a)); }

void LoneNode::EndPersist() {
  const action::Persist persist = std::move(persists_.begin()->second);
  persists_.erase(persists_.begin());
  const StatusOr<bool> written = storage_.Write(persist, unix_ms());
  event::Persisted persisted{persist.checkpoint, written.status()};
  persisted.awaits_others = written.ok() && !*written;
  persisted.location = Location(absl::StrCat(persist.checkpoint.job, "/", persist.checkpoint.step));
  Count(persisted.status.ok() ? "persisted" : "not persisted");
  pending_.push_back(std::move(persisted));
}

void LoneNode::Do(action::WriteLineRecord& a) {
  pending_.push_back(event::LineRecordWritten{a.record, storage_.Write(a.record, unix_ms())});
}

void LoneNode::Do(action::DeleteFiles& a) {
  Count(a.tombstone ? "files removed" : "files deleted by policy");
  pending_.push_back(event::FilesDeleted{a.checkpoint, storage_.Delete(a)});
}

void LoneNode::Do(action::ScanJob& a) {
  Count("scans");
  pending_.push_back(event::JobScanned{a.job, storage_.Scan(a.job, unix_ms()), kUid, kUid});
}

void LoneNode::Do(action::ReadTables& a) {
  pending_.push_back(event::TablesRead{a.checkpoint, storage_.Read(a.checkpoint)});
}

void LoneNode::Do(action::ReadLineNumbers& a) {
  pending_.push_back(event::LineNumbersRead{a.job, storage_.Numbers(a.job)});
}

}  // namespace cairn::world
