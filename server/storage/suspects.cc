#include "server/storage/suspects.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"

namespace cairn::storage {
namespace {

constexpr MonotonicNanos kHour = 3600 * kNanosPerSecond;
constexpr MonotonicNanos kLongestAside = 24 * kHour;
// So long after the last death nothing is known of it any more.
constexpr MonotonicNanos kForgotten = 2 * kLongestAside;
constexpr uint32_t kDeathsAlone = 2;  // that set a job aside, if in the last one it was read alone
constexpr uint32_t kDeathsBeside = 3;

MonotonicNanos AsideFor(uint32_t set_asides) {
  if (set_asides == 0) return 0;
  return std::min(kHour << std::min(set_asides - 1, uint32_t{10}), kLongestAside);
}

std::string UsesText(uint32_t uses) {
  std::vector<absl::string_view> names;
  for (uint32_t use = 0; use < kUses; ++use) {
    if ((uses & BitOf(static_cast<Use>(use))) != 0) names.push_back(UseName(static_cast<Use>(use)));
  }
  return absl::StrJoin(names, ", ");
}

std::string Deaths(const Suspect& suspect) {
  return absl::StrCat("reading its directory in storage (", UsesText(suspect.uses),
                      ") ended the daemon ", suspect.deaths,
                      suspect.deaths == 1 ? " time" : " times");
}

}  // namespace

Suspects::Suspects(std::unique_ptr<BlackBox> box, Clock* clock, const Options& options)
    : clock_(clock), options_(options), box_(std::move(box)) {
  MutexLock lock(&mu_);
  if (box_ != nullptr) Learn();
}

// --- what the last daemon left

void Suspects::Learn() {
  const MonotonicNanos now = clock_->Now();
  for (Suspect& suspect : box_->Suspects(now)) {
    if (now - suspect.last_death >= kForgotten) continue;
    const std::string job = suspect.job;
    known_[job].suspect = std::move(suspect);
  }
  std::map<std::string, bool> blamed;  // whether it was alone
  if (!box_->ended_in_order()) {
    for (const UnderWay& call : box_->Calls()) {
      Known& known = known_[call.job];
      known.suspect.job = call.job;
      known.suspect.uses |= BitOf(call.use);
      blamed[call.job] |= call.alone;
    }
  }
  // Dying between these two it forgets a death, and counts none twice.
  box_->Begin();
  for (const auto& [job, alone] : blamed) Blame(&known_[job], alone, now);
  Put();
  for (auto& [job, known] : known_) {
    const Suspect& suspect = known.suspect;
    known.aside_until = suspect.last_death + AsideFor(suspect.set_asides);
    if (suspect.set_asides > 0 && now < known.aside_until) {
      const int64_t until_ms = clock_->UnixMillis() + (known.aside_until - now) / kNanosPerMilli;
      known.why =
          absl::StrCat(Deaths(suspect), ", so it is not read again until ",
                       absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::FromUnixMillis(until_ms),
                                        absl::UTCTimeZone()),
                       ", or until the keeper gets SIGHUP; saving and loading from memory go on");
      learnt_.push_back(absl::StrCat("job ", job, ": ", known.why));
    } else if (blamed.contains(job)) {
      learnt_.push_back(absl::StrCat("job ", job, ": ", Deaths(suspect),
                                     "; it is suspected, and read alone until that ends well"));
    }
  }
}

void Suspects::Blame(Known* known, bool alone, MonotonicNanos now) {
  Suspect& suspect = known->suspect;
  ++suspect.deaths;
  suspect.last_death = now;
  const bool again = suspect.set_asides > 0;  // it was read once more
  if (again || suspect.deaths >= (alone ? kDeathsAlone : kDeathsBeside)) ++suspect.set_asides;
}

void Suspects::Put() {
  std::vector<Suspect> suspects;
  for (const auto& [job, known] : known_) suspects.push_back(known.suspect);
  box_->Put(std::move(suspects));
}

void Suspects::EndInOrder() {
  MutexLock lock(&mu_);
  if (box_ != nullptr) box_->EndInOrder();
}

std::map<std::string, std::string> Suspects::SetAside() const {
  std::map<std::string, std::string> jobs;
  MutexLock lock(&mu_);
  const MonotonicNanos now = clock_->Now();
  for (const auto& [job, known] : known_) {
    if (now < known.aside_until) jobs[job] = known.why;
  }
  return jobs;
}

// --- calls

StatusOr<Suspects::Call> Suspects::Begin(const std::string& job, Use use) {
  MutexLock lock(&mu_);
  const auto found = known_.find(job);
  if (found != known_.end() && clock_->Now() < found->second.aside_until) {
    return absl::UnavailableError(absl::StrCat("job ", job, ": ", found->second.why));
  }
  bool alone = false;
  if (found != known_.end() && (found->second.been_alone & BitOf(use)) == 0) {
    found->second.been_alone |= BitOf(use);
    alone = WaitToBeAlone();
  } else {
    WaitForThoseAlone();
  }
  const uint64_t id = ++last_id_;
  // To write a part may take minutes in which nothing else begins: a death meanwhile is no evidence that
  // it was this call.
  const bool tells = alone && use != Use::kWriteParts;
  const int slot = box_ == nullptr ? BlackBox::kNoSlot : box_->Enter(job, use, tells);
  running_[id] = {job, use, slot};
  if (alone) {
    alone_ = id;
    alone_until_ = std::chrono::steady_clock::now() + options_.alone_for;
  }
  return Call(this, id);
}

// False: others are under way that do not end.
bool Suspects::WaitToBeAlone() {
  const Time until = std::chrono::steady_clock::now() + options_.alone_for;
  ++want_to_be_alone_;
  while (!running_.empty()) {
    if (!changed_.WaitUntil(&mu_, until) && std::chrono::steady_clock::now() >= until) break;
  }
  --want_to_be_alone_;
  changed_.NotifyAll();
  if (running_.empty()) return true;
  WaitForThoseAlone();
  return false;
}

void Suspects::WaitForThoseAlone() {
  const Time until = std::chrono::steady_clock::now() + 2 * options_.alone_for;
  while (alone_ != 0 || want_to_be_alone_ > 0) {
    const Time now = std::chrono::steady_clock::now();
    if (now >= until || (alone_ != 0 && now >= alone_until_)) break;
    changed_.WaitUntil(&mu_, alone_ != 0 ? std::min(until, alone_until_) : until);
  }
  // From here on it is one of several.
  if (alone_ != 0) box_->NotAlone(running_.at(std::exchange(alone_, 0)).slot);
}

void Suspects::Call::End(bool well) {
  if (of_ != nullptr) std::exchange(of_, nullptr)->EndCall(id_, well);
}

void Suspects::EndCall(uint64_t id, bool well) {
  MutexLock lock(&mu_);
  const auto at = running_.find(id);
  const Running call = std::move(at->second);
  running_.erase(at);
  if (box_ != nullptr) box_->Leave(call.slot);
  if (alone_ == id) alone_ = 0;
  changed_.NotifyAll();
  const auto known = known_.find(call.job);
  if (!well || known == known_.end()) return;
  uint32_t& uses = known->second.suspect.uses;
  if ((uses & BitOf(call.use)) == 0) return;
  uses &= ~BitOf(call.use);
  if (uses == 0) known_.erase(known);
  Put();
}

}  // namespace cairn::storage
