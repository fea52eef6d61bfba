// What waits to be said to one member: state, not events. Of each topic (a kind, and the job where it is about
// one) there is at most one message, so that what waits is bounded by what there is to say, however long the
// member does not listen.
//
// A newer message takes the place of the older one of its topic, with two exceptions. The changes of a
// job's report are merged, for each of them counts. Releases are merged by part, for each is an answer.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/peer_messages.h"

namespace cairn::rpc {

// Not thread-safe.
class PeerOutbox {
 public:
  explicit PeerOutbox(size_t most_topics = size_t{1} << 18) : most_topics_(most_topics) {}

  // False, and nothing is changed: there are too many topics.
  bool Put(engine::peer::Message message);
  // All that waits, each where the first message of its topic came.
  std::vector<engine::peer::Message> Take();
  void Clear();
  bool empty() const { return waiting_.empty(); }

 private:
  using Topic = std::pair<size_t, std::string>;  // kind, job

  const size_t most_topics_;
  std::vector<engine::peer::Message> waiting_;
  std::map<Topic, size_t> places_;  // in waiting_
};

}  // namespace cairn::rpc
