#include "client/cpp/status_json.h"

#include <nlohmann/json.hpp>

#include "proto/convert.h"

namespace cairn::client {
namespace {

using Json = nlohmann::ordered_json;

Json PolicyJson(const wire::JobPolicy& policy) {
  return {{"mode", std::string(NameOf(policy.mode))},
          {"every", policy.every},
          {"keep_last", policy.keep_last},
          {"keep_every", policy.keep_every},
          {"replicas", policy.replicas},
          {"readers", std::string(NameOf(policy.readers))}};
}

Json SessionJson(const wire::SessionStatus& s) {
  return {{"session", s.session},
          {"pid", s.pid},
          {"uid", s.uid},
          {"job", s.job},
          {"writer", s.writer},
          {"attempt", s.attempt},
          {"leased_bytes", s.leased_bytes},
          {"leases", s.leases},
          {"writing_step", s.writing_step},
          {"writing_total", s.writing_total},
          {"writing_done", s.writing_done},
          {"connected_unix_ms", s.connected_unix_ms},
          {"client", s.client}};
}

Json IndexedJson(const wire::IndexCheckpoint& checkpoint) {
  Json holders = Json::array();
  for (const auto& holder : checkpoint.holders) {
    holders.push_back(
        {{"node", holder.node}, {"parts", holder.parts}, {"seen_unix_ms", holder.seen_unix_ms}});
  }
  return {{"step", checkpoint.step},
          {"attempt", checkpoint.attempt},
          {"revision", checkpoint.revision},
          {"world_size", checkpoint.world_size},
          {"completed_unix_ms", checkpoint.completed_unix_ms},
          {"persisted", checkpoint.persisted},
          {"holders", holders}};
}

Json RingJson(const wire::JobRing& ring) {
  return {{"home", ring.home},
          {"latest", ring.latest},
          {"protected", ring.protected_step},
          {"target", ring.target},
          {"replicas", ring.replicas},
          {"asked", ring.asked},
          {"complete_view", ring.complete_view},
          {"silent", ring.silent},
          {"why", ring.why},
          {"age_ms", ring.age_ms}};
}

Json RingJson(const wire::RingStatus& ring) {
  Json members = Json::array();
  for (const auto& m : ring.members) {
    members.push_back({{"rank", m.rank},
                       {"address", m.address},
                       {"state", m.state},
                       {"incarnation", m.incarnation},
                       {"silent_ms", m.silent_ms},
                       {"held_for_us_bytes", m.held_for_us_bytes},
                       {"held_for_it_bytes", m.held_for_it_bytes}});
  }
  Json fetches = Json::array();
  for (const auto& f : ring.fetches) {
    fetches.push_back({{"job", f.job},
                       {"attempt", f.attempt},
                       {"step", f.step},
                       {"writer", f.writer},
                       {"what_for", f.what_for},
                       {"bytes", f.bytes},
                       {"done_bytes", f.done_bytes},
                       {"sources", f.sources}});
  }
  return {{"cluster", ring.cluster},
          {"rank", ring.rank},
          {"incarnation", ring.incarnation},
          {"members", members},
          {"replicas", ring.replicas},
          {"replica_bytes", ring.replica_bytes},
          {"replica_quota_bytes", ring.replica_quota_bytes},
          {"replica_reserved_bytes", ring.replica_reserved_bytes},
          {"fetches_under_way", ring.fetches_under_way},
          {"grants", ring.grants},
          {"restoring", ring.restoring},
          {"fetches", fetches}};
}

Json JobJson(const wire::JobStatus& j) {
  Json json = {{"job", j.job},
               {"owner_uid", j.owner_uid},
               {"resident_bytes", j.resident_bytes},
               {"latest_step", j.latest_step},
               {"latest_persisted_step", j.latest_persisted_step},
               {"unprotected_checkpoints", j.unprotected_checkpoints},
               {"unprotected_bytes", j.unprotected_bytes},
               {"policy", PolicyJson(j.policy)},
               {"attempt", j.attempt},
               {"persist_problem", j.persist_problem},
               {"deletable_checkpoints", j.deletable_checkpoints},
               {"refused_saves", j.refused_saves},
               {"last_refusal", j.last_refusal},
               {"last_refusal_unix_ms", j.last_refusal_unix_ms},
               {"failed_persists", j.failed_persists},
               {"last_failed_persist_unix_ms", j.last_failed_persist_unix_ms}};
  if (j.__isset.ring) json["ring"] = RingJson(j.ring);
  return json;
}

}  // namespace

std::string ToJson(const wire::IndexReply& index) {
  Json jobs = Json::array();
  for (const auto& job : index.jobs) {
    Json shown = {{"job", job.job}, {"owner_uid", job.owner_uid}};
    if (job.__isset.latest) shown["latest"] = IndexedJson(job.latest);
    jobs.push_back(shown);
  }
  Json checkpoints = Json::array();
  for (const auto& checkpoint : index.checkpoints) checkpoints.push_back(IndexedJson(checkpoint));
  Json nodes = Json::array();
  for (const auto& node : index.nodes) {
    nodes.push_back({{"node", node.node},
                     {"seen_unix_ms", node.seen_unix_ms},
                     {"incarnation", node.incarnation},
                     {"budget_bytes", node.budget_bytes},
                     {"used_bytes", node.used_bytes},
                     {"replica_bytes", node.replica_bytes}});
  }
  const Json out = {{"as_of_unix_ms", index.as_of_unix_ms},
                    {"jobs", jobs},
                    {"checkpoints", checkpoints},
                    {"more", index.more},
                    {"nodes", nodes}};
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string ToJson(const wire::NodeStatus& status) {
  Json sessions = Json::array();
  for (const auto& s : status.sessions) sessions.push_back(SessionJson(s));
  Json quarantined = Json::array();
  for (const auto& q : status.quarantined) {
    quarantined.push_back({{"slab", q.slab},
                           {"bytes", q.bytes},
                           {"age_ms", q.age_ms},
                           {"pids", q.pids},
                           {"job", q.job}});
  }
  Json jobs = Json::array();
  for (const auto& j : status.jobs) jobs.push_back(JobJson(j));
  Json out = {{"node", status.node},
              {"version", status.version},
              {"started_unix_ms", status.started_unix_ms},
              {"restarts", status.restarts},
              {"state", status.state},
              {"budget_bytes", status.budget_bytes},
              {"slab_bytes", status.slab_bytes},
              {"used_bytes", status.used_bytes},
              {"free_bytes", status.free_bytes},
              {"quarantined_bytes", status.quarantined_bytes},
              {"writing_bytes", status.writing_bytes},
              {"prefault_done", status.prefault_done},
              {"sessions", sessions},
              {"quarantined", quarantined},
              {"jobs", jobs},
              {"counters", status.counters},
              {"storage_root", status.storage_root},
              {"storage_id", status.storage_id},
              {"storage_problem", status.storage_problem},
              {"catalog", status.catalog}};
  if (status.__isset.ring) out["ring"] = RingJson(status.ring);
  // What a client called itself is any bytes; a status page must not fail over them.
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace cairn::client
