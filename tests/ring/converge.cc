#include "tests/ring/converge.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/ring/world.h"

namespace cairn::engine::ringsim {

void Convergence::Ask() {
  said_.clear();
  for (SimNode* node : world_.Members()) {
    for (const auto& job : world_.jobs) {
      const auto id = std::make_pair(node->id(), job->name());
      const auto session = sessions_.find(id);
      if (session != sessions_.end()) {
        AskOne(node, job->name(), session->second);
        continue;
      }
      event::Hello hello;
      hello.job = job->name();
      node->Hello(std::move(hello), [this, node, id](const StatusOr<reply::Body>& body) {
        if (!body.ok()) return;
        sessions_[id] = std::get<reply::Hello>(*body).session;
        AskOne(node, id.second, sessions_[id]);
      });
    }
  }
}

void Convergence::AskOne(SimNode* node, const std::string& job, SessionId session) {
  const auto id = std::make_pair(node->id(), job);
  node->Call(session, event::Latest{{}, job}, [this, node, id, session](const auto& body) {
    Said& said = said_[id];
    said.answered = true;
    said.status = body.status();
    if (!body.ok()) return;
    const auto& latest = std::get<reply::Latest>(*body);
    world_.truth.ToldLatest(*node, latest);
    said.latest = latest.key;
    const CheckpointKey& key = latest.key;
    node->Call(session, event::StatCheckpoint{{}, {key.job, key.step, key.attempt, key.revision}},
               [this, id](const auto& stat) {
                 Said& of = said_[id];
                 of.stated = stat.ok();
                 if (!stat.ok()) return;
                 const auto& info = std::get<CheckpointInfo>(*stat);
                 of.replicas = info.facts.replicas;
                 of.persisted = info.facts.persisted;
               });
  });
}

std::string Convergence::Missing() const {
  if (world_.catalog != nullptr) {
    std::string missing = world_.catalog->Missing();
    if (!missing.empty()) return missing;
  }
  for (const auto& job : world_.jobs) {
    if (!job->finished()) return absl::StrCat(job->name(), " has not saved its last steps");
    const Said* first = nullptr;
    for (SimNode* node : world_.Members()) {
      const auto at = said_.find({node->id(), job->name()});
      const std::string who = absl::StrCat("node ", node->id(), " about ", job->name(), ": ");
      if (at == said_.end() || !at->second.answered) return absl::StrCat(who, "no answer");
      const Said& said = at->second;
      if (!said.status.ok()) return absl::StrCat(who, said.status.ToString());
      if (first == nullptr) first = &said;
      if (!(said.latest == first->latest)) {
        return absl::StrCat(who, "latest is ", said.latest.DebugString(), ", another says ",
                            first->latest.DebugString());
      }
      if (!said.stated) return absl::StrCat(who, "it cannot say more of ", said.latest.step);
      const int copies = world_.truth.Copies(said.latest, /*of_members=*/true);
      if (copies <= world_.shape.replicas && world_.shape.roomy) {
        return absl::StrCat(said.latest.DebugString(), " has ", copies, " copies");
      }
      if (said.replicas < world_.shape.replicas && !said.persisted && world_.shape.roomy) {
        return absl::StrCat(who, "it knows of ", said.replicas, " replicas");
      }
    }
  }
  return "";
}

}  // namespace cairn::engine::ringsim
