// Answers to a writer: what it was granted, and how its commit ended.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/answers.h"
#include "tests/sim/checks.h"

namespace cairn::engine::sim {

void Answer::EndStep() {
  if (superseded_ != 0) process_.gone_from_group = true;
  process_.phase = Process::Phase::kIdle;
  ++process_.step;
}

bool Answer::LendAll(const std::vector<Lend>& lends) {
  bool failed = false;
  for (const Lend& lend : lends) {
    failed |= !process_.alive || (!world_.ending && world_.rng.Permille(15));
    if (failed) {
      report_.Count("description not lent");
      node_.waiting.push_back(event::LendFailed{lend.lease});
      continue;
    }
    SimSlab& slab = node_.memory.slabs.at(lend.slab);
    const auto fact = node_.mirror.leases.find(lend.lease);
    if (fact == node_.mirror.leases.end() || fact->second.slab != lend.slab) {
      report_.Fail(absl::StrCat("lease ", lend.lease, " is lent, the journal does not say so"));
      return false;
    }
    slab.maps.insert(process_.id);
    process_.maps.insert(lend.slab);
    std::erase(process_.unmapped, lend.slab);
  }
  return !failed;
}

// --- create

void Answer::On(const event::Create& e) {
  if (!asked_.scripted && !of_save_) {
    // Nobody reads the answer any more, but the descriptions came before it.
    if (ok() && process_.session != 0 && process_.session == e.caller.session) {
      LendAll(As<reply::Create>().lend);
    }
    return;
  }
  if (!ok()) return OnRefusedCreate(e);
  const auto& create = As<reply::Create>();
  if (create.extents.empty() && !e.objects.empty()) return OnUnmapFirst(create);
  if (!GrantIsRight(e, create) || !SameAsFirst(e, create)) return;
  OnGrant(e, create);
}

void Answer::OnRefusedCreate(const event::Create& e) {
  if (asked_.scripted) {
    clients_.scripted_ = std::move(body_);
    return;
  }
  const Status status = body_.status();
  process_.request = 0;
  process_.under_way.reset();
  process_.phase = Process::Phase::kIdle;
  process_.creates.clear();
  if (absl::IsInvalidArgument(status) || absl::IsDataLoss(status)) {
    return report_.Fail(absl::StrCat("create of ", e.part.DebugString(),
                                     ", which is as it should be, is answered ",
                                     status.ToString()));
  }
  if (absl::IsResourceExhausted(status)) report_.Count("refused");
  if (!absl::IsUnavailable(status)) ++process_.step;
  if (superseded_ != 0) {
    report_.Count("superseded");
    process_.gone_from_group = true;
  }
}

// It is to unmap some slabs and ask again.
void Answer::OnUnmapFirst(const reply::Create& create) {
  report_.Count("unmap first");
  if (create.retire.empty()) return report_.Fail("a create is answered with nothing at all");
  clients_.Unmap(&process_, create.retire, /*tell=*/true);
  if (asked_.scripted) {
    clients_.scripted_ = std::move(body_);
    return;
  }
  process_.request = 0;
  auto& again = std::get<event::Create>(*process_.under_way);
  again.unmapped = std::exchange(process_.unmapped, {});
}

bool Answer::GrantIsRight(const event::Create& e, const reply::Create& create) {
  if (create.extents.size() != e.objects.size()) {
    report_.Fail(absl::StrCat("a create of ", e.objects.size(), " objects is granted ",
                              create.extents.size()));
    return false;
  }
  if (node_.journal_full && !process_.granted.contains(e.call) &&
      asked_.asked_in == node_.applies && process_.repeats == 0 && !asked_.scripted) {
    report_.Fail("a full journal refuses create, this one was granted");
    return false;
  }
  CheckGrant(&node_, process_, create);
  if (!world_.ok()) return false;
  for (size_t i = 0; i < create.extents.size(); ++i) {
    const reply::GrantedExtent& extent = create.extents[i];
    if (extent.length < e.objects[i].length) {
      report_.Fail("an extent is shorter than what was asked for");
      return false;
    }
    if (std::find(create.retire.begin(), create.retire.end(), extent.slab) != create.retire.end()) {
      report_.Fail(absl::StrCat("slab ", extent.slab, " is granted and is to be unmapped"));
      return false;
    }
  }
  return true;
}

// A create that is answered again names the same places (promise 7).
bool Answer::SameAsFirst(const event::Create& e, const reply::Create& create) {
  std::vector<Process::Place> places;
  for (const reply::GrantedExtent& extent : create.extents) {
    places.emplace_back(extent.slab, extent.offset);
  }
  const auto first = process_.granted.find(e.call);
  // What was granted before may have been dropped, when the step was refused for all its writers.
  if (first == process_.granted.end() || node_.last.created.contains(e.part)) {
    process_.granted[e.call] = std::move(places);
    return true;
  }
  report_.Count("create answered again");
  if (first->second == places) return true;
  report_.Fail(absl::StrCat("promise 7: call ", e.call, " of ", e.part.DebugString(),
                            " is answered again, with other extents"));
  return false;
}

void Answer::OnGrant(const event::Create& e, const reply::Create& create) {
  const bool lent = LendAll(create.lend);
  if (!world_.ok()) return;
  if (asked_.scripted) {
    clients_.scripted_ = std::move(body_);
    return;
  }
  if (!process_.alive) return;
  process_.request = 0;
  if (!lent || lost_) return;
  report_.Count("granted");
  for (size_t i = 0; i < create.extents.size(); ++i) {
    Process::Object& object = process_.objects[e.objects[i].name];
    object.spec = e.objects[i];
    object.extent = create.extents[i];
  }
  process_.under_way.reset();
  process_.repeats = 0;
  process_.phase = Process::Phase::kGranted;
  if (!world_.rng.Permille(150)) clients_.Unmap(&process_, create.retire, /*tell=*/true);
}

// --- seal

void Answer::On(const event::SealObjects& e) {
  if (!of_save_) return;
  process_.request = 0;
  if (lost_) return;
  process_.under_way.reset();
  process_.phase = Process::Phase::kGranted;
  if (ok()) {
    for (const event::Seal& each : e.seals) {
      const auto object = process_.objects.find(each.name);
      // What is sealed provisionally comes again with the commit.
      if (object != process_.objects.end() && !e.provisional) object->second.sealed = true;
    }
    return;
  }
  if (absl::IsInvalidArgument(body_.status())) {
    return report_.Fail(
        absl::StrCat("seal of ", e.part.DebugString(), " is answered ", body_.status().ToString()));
  }
  EndStep();
}

// --- commit

void Answer::On(const event::Commit& e) {
  if (ok()) return OnCommitted(e);
  if (of_save_) OnRefusedCommit(e);
}

void Answer::OnCommitted(const event::Commit& e) {
  const auto& commit = As<reply::Commit>();
  PartPromise& promise = world_.promises.parts[e.part];
  report_.Count(promise.acknowledged ? "commit answered again" : "committed");
  if (!promise.committed || promise.digest != commit.digest) {
    return report_.Fail(absl::StrCat("promise 3: the commit of ", e.part.DebugString(),
                                     " is acknowledged, but the journal does not have it"));
  }
  promise.acknowledged = true;
  if (commit.complete && !world_.promises.EverComplete(e.part.checkpoint)) {
    return report_.Fail(absl::StrCat("promise 3: ", e.part.checkpoint.DebugString(),
                                     " is called complete, but it lacks writers"));
  }
  if (!of_save_) return;
  process_.request = 0;
  if (lost_) return;
  process_.under_way.reset();
  process_.phase = Process::Phase::kIdle;
  process_.objects.clear();
  // Some steps are entered once more, by all ranks alike.
  const bool again = Mix(world_.options.seed, Mix(static_cast<uint64_t>(process_.step),
                                                  static_cast<uint64_t>(process_.attempt))) %
                         12 ==
                     0;
  if (!again || e.part.checkpoint.revision > 0) ++process_.step;
}

void Answer::OnRefusedCommit(const event::Commit& e) {
  const Status& status = body_.status();
  if (absl::IsInvalidArgument(status) || absl::IsOutOfRange(status)) {
    return report_.Fail(absl::StrCat("commit of ", e.part.DebugString(),
                                     ", which is as it should be, is answered ",
                                     status.ToString()));
  }
  if (absl::StrContains(status.message(), "dropped with its objects")) {
    report_.Count("commit of what was dropped");
    if (world_.promises.parts.at(e.part).objects.empty()) {
      return report_.Fail(absl::StrCat("commit of ", e.part.DebugString(),
                                       ", which never had any objects, is answered ",
                                       status.ToString()));
    }
  }
  process_.request = 0;
  if (absl::IsResourceExhausted(status) || absl::IsDataLoss(status) ||
      absl::IsUnavailable(status)) {
    report_.Count("commit to be repeated");
    return;  // and so it is
  }
  process_.under_way.reset();
  EndStep();
}

}  // namespace cairn::engine::sim
