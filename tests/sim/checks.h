// The promises of docs/architecture.md, compared with what the engine says and does. Each check
// fails the life through its report, with the promise's number.
#pragma once

#include <string>
#include <vector>

#include "server/engine/engine.h"

namespace cairn::engine::sim {

class Node;
struct Process;

// --- after facts
// Remembers the steps that this Apply refuses, from the answers to their creates.
void NoteRefusals(Node* node, const Outcome& outcome);
// Memory is given up only by the rules: garbage and superseded steps, what storage has, what was
// removed, what broke. It is never the newest complete step that is nowhere else, a live job's
// newest, or what is pinned. The node's mirror does not have the drops among `facts` yet.
void CheckDrops(const Node& node, const std::vector<Fact>& facts, const Event* event,
                const Outcome& outcome);
// An attempt comes from where the line says, as far as the event tells its first step.
void CheckAttempt(const Node& node, const fact::AttemptBegun& begun, const Event* event);

// --- after an Apply
// Nobody waits beyond a deadline or a session's end, and the engine asks to be woken in time.
void CheckCallers(const Node& node);
// What was acknowledged PERSISTED is in storage.
void CheckPersisted(const Node& node);

// --- at actions and answers
// No action under way uses the slab that is now `what` ("lent", "destroyed").
void CheckNothingUses(const Node& node, SlabId slab, const char* what);
// Slabs lent for writing are there, the caller's for life, and seen by nobody else. The first grant
// settles whose they are.
void CheckGrant(Node* node, const Process& process, const reply::Create& create);
void CheckLatest(Node* node, const std::string& job, const StatusOr<reply::Body>& body);
void CheckInfo(const Node& node, const CheckpointInfo& info);

// What the newest life, which another node has begun and which has published nothing yet, goes on from.
void CheckOtherNodesOrigin(const Node& node, const action::DeleteFiles& deletion);
// After the deletion: it did not take the last whole checkpoint that the job had in storage.
void CheckSomethingStays(const Node& node, const action::DeleteFiles& deletion);
// Files that go by policy are those that the rules of docs/line.md give up (rule 21), by the history
// that the node knows and by storage's own clock.
void CheckDeletionByPolicy(const Node& node, const CheckpointKey& key);

// --- at the end, when storage could be read long enough
// Where every attempt comes from is settled (rule 17).
void CheckOriginsKnown(const Node& node);

// --- now and then
// What a reader still sees stays what it opened (R14).
void CheckHolds(const Node& node);

}  // namespace cairn::engine::sim
