#include "server/rpc/peer_outbox.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cairn::rpc {
namespace {

namespace peer = engine::peer;

struct JobOf {
  std::string operator()(const peer::WantList&) const { return ""; }
  std::string operator()(const peer::HaveList&) const { return ""; }
  std::string operator()(const peer::ReleaseList&) const { return ""; }
  std::string operator()(const peer::Report& m) const { return m.delta.job; }
  std::string operator()(const peer::ReportWanted& m) const { return m.job; }
  std::string operator()(const peer::VerdictSaid& m) const { return m.verdict->job; }
  std::string operator()(const peer::VerdictWanted& m) const { return m.job; }
  std::string operator()(const peer::Record& m) const { return m.job; }
  std::string operator()(const peer::RecordHeld& m) const { return m.job; }
  // One question and answer for each checkpoint and name.
  std::string operator()(const peer::PlacesWanted& m) const {
    return absl::StrCat(m.checkpoint.DebugString(), "/", m.name);
  }
  std::string operator()(const peer::PlacesSaid& m) const {
    return absl::StrCat(m.checkpoint.DebugString(), "/", m.name);
  }
};

// Lets `newer` take the place of `older`, of the same kind.
struct Replace {
  template <typename M>
  void operator()(M& newer) const {
    *older = std::move(newer);
  }
  void operator()(peer::Report& newer) const {
    engine::ReportDelta& waiting = std::get<peer::Report>(*older).delta;
    newer.delta.answers = std::max(newer.delta.answers, waiting.answers);
    // One that does not build on what waits is said as it is: a whole one needs nothing before it, and of
    // another its receiver sees what it lacks, and asks for the whole.
    if (newer.delta.after != waiting.number) {
      waiting = std::move(newer.delta);
    } else {
      waiting = engine::MergeDelta(std::move(waiting), newer.delta);
    }
  }
  void operator()(peer::VerdictSaid& newer) const {
    auto& waiting = std::get<peer::VerdictSaid>(*older);
    newer.answers = std::max(newer.answers, waiting.answers);
    waiting = std::move(newer);
  }
  void operator()(peer::ReleaseList& newer) const {
    std::map<std::pair<PartKey, std::string>, peer::Release> all;
    auto& waiting = std::get<peer::ReleaseList>(*older);
    for (auto* list : {&waiting.releases, &newer.releases}) {
      for (peer::Release& release : *list) {
        std::pair<PartKey, std::string> key{release.part, release.digest};
        all.insert_or_assign(std::move(key), std::move(release));
      }
    }
    waiting.haves_version = newer.haves_version;
    waiting.releases.clear();
    for (auto& [key, release] : all) waiting.releases.push_back(std::move(release));
  }

  peer::Message* older;
};

}  // namespace

bool PeerOutbox::Put(peer::Message message) {
  Topic topic{message.index(), std::visit(JobOf(), message)};
  const auto at = places_.find(topic);
  if (at != places_.end()) {
    std::visit(Replace{&waiting_[at->second]}, message);
    return true;
  }
  if (places_.size() >= most_topics_) return false;
  waiting_.push_back(std::move(message));
  places_.emplace(std::move(topic), waiting_.size() - 1);
  return true;
}

std::vector<peer::Message> PeerOutbox::Take() {
  places_.clear();
  return std::exchange(waiting_, {});
}

void PeerOutbox::Clear() { Take(); }

}  // namespace cairn::rpc
