#include "common/failpoint.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace cairn {
namespace failpoint_internal {

std::atomic<bool> armed{false};

namespace {

constexpr int kPoints = static_cast<int>(Failpoint::kCount);
constexpr int kAny = kPoints;
constexpr int kStop = -1;  // in the place of an errno

constexpr const char* kNames[] = {
#define CAIRN_FAILPOINT_NAME_(id, name) name,
    CAIRN_FAILPOINTS(CAIRN_FAILPOINT_NAME_)
#undef CAIRN_FAILPOINT_NAME_
};

struct Slot {
  std::atomic<int64_t> left{0};  // reaches until it acts; 0 and below: does nothing
  std::atomic<int> error{0};     // 0: exit; kStop
  std::string about;             // empty: whatever a reach is about
};
std::array<Slot, kPoints + 1> slots;
std::atomic<int> hits{0};

int Count(Slot* slot, absl::string_view about) {
  if (!slot->about.empty() && slot->about != about) return 0;
  if (slot->left.fetch_sub(1, std::memory_order_acq_rel) != 1) return 0;
  const int error = slot->error.load(std::memory_order_acquire);
  // Not _exit, which sanitizers hook to run their checks first.
  if (error == 0) ::syscall(SYS_exit_group, kFailpointExitCode);
  hits.fetch_add(1, std::memory_order_relaxed);
  if (error != kStop) return error;
  ::kill(::getpid(), SIGSTOP);
  return 0;
}

}  // namespace

// Written while no other thread reaches points.
std::function<void(Failpoint)> hook;

int Reach(Failpoint point, absl::string_view about) {
  if (hook) hook(point);
  const int error = Count(&slots[static_cast<size_t>(point)], about);
  const int any = Count(&slots[kAny], about);
  return error != 0 ? error : any;
}

}  // namespace failpoint_internal

namespace {

struct Arm {
  int slot = -1;
  int64_t reaches = 1;
  int error = 0;
  std::string about;
};

int ErrnoNamed(absl::string_view name) {
  constexpr int kMaxErrno = 200;
  for (int error = 1; error < kMaxErrno; ++error) {
    const char* known = strerrorname_np(error);
    if (known != nullptr && name == known) return error;
  }
  return 0;
}

StatusOr<Arm> ParseArm(absl::string_view part) {
  const auto bad = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("failpoint: \"", part, "\" ", why));
  };
  Arm arm;
  const std::pair<absl::string_view, absl::string_view> by_equals =
      absl::StrSplit(part, absl::MaxSplits('=', 1));
  const std::pair<absl::string_view, absl::string_view> by_colon =
      absl::StrSplit(by_equals.first, absl::MaxSplits(':', 1));
  absl::string_view name = by_colon.first;
  if (const size_t at = name.find('('); at != absl::string_view::npos && name.back() == ')') {
    arm.about = std::string(name.substr(at + 1, name.size() - at - 2));
    name = name.substr(0, at);
  }
  for (int i = 0; i < failpoint_internal::kPoints; ++i) {
    if (name == failpoint_internal::kNames[i]) arm.slot = i;
  }
  if (name == "any") arm.slot = failpoint_internal::kAny;
  if (arm.slot < 0) return bad("names no failpoint");
  if (!by_colon.second.empty() &&
      (!absl::SimpleAtoi(by_colon.second, &arm.reaches) || arm.reaches < 1)) {
    return bad("has a count that is not a number above 0");
  }
  if (!by_equals.second.empty()) {
    const bool stops = by_equals.second == "STOP";
    arm.error = stops ? failpoint_internal::kStop : ErrnoNamed(by_equals.second);
    if (arm.error == 0) return bad("names no errno");
  }
  return arm;
}

}  // namespace

absl::string_view FailpointName(Failpoint point) {
  return failpoint_internal::kNames[static_cast<size_t>(point)];
}

std::vector<Failpoint> AllFailpoints() {
  std::vector<Failpoint> all;
  for (int i = 0; i < failpoint_internal::kPoints; ++i) all.push_back(static_cast<Failpoint>(i));
  return all;
}

int FailpointsHit() { return failpoint_internal::hits.load(std::memory_order_relaxed); }

void SetFailpointHook(std::function<void(Failpoint)> hook) {
  failpoint_internal::hook = std::move(hook);
  failpoint_internal::armed.store(static_cast<bool>(failpoint_internal::hook),
                                  std::memory_order_release);
}

Status ArmFailpoints(absl::string_view spec) {
  failpoint_internal::armed.store(false, std::memory_order_release);
  for (auto& slot : failpoint_internal::slots) slot.left.store(0, std::memory_order_relaxed);
  failpoint_internal::hits.store(0, std::memory_order_relaxed);
  if (spec.empty()) {
    const bool hooked = static_cast<bool>(failpoint_internal::hook);
    failpoint_internal::armed.store(hooked, std::memory_order_release);
    return absl::OkStatus();
  }
  std::vector<Arm> arms;
  for (absl::string_view part : absl::StrSplit(spec, ',')) {
    CAIRN_ASSIGN_OR_RETURN(const Arm arm, ParseArm(part));
    arms.push_back(arm);
  }
  for (const Arm& arm : arms) {
    auto& slot = failpoint_internal::slots[static_cast<size_t>(arm.slot)];
    slot.about = arm.about;
    slot.error.store(arm.error, std::memory_order_relaxed);
    slot.left.store(arm.reaches, std::memory_order_relaxed);
  }
  failpoint_internal::armed.store(true, std::memory_order_release);
  return absl::OkStatus();
}

}  // namespace cairn
