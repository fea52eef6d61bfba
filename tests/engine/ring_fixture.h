// A node of a ring, and what the tests let the other member and the job's home say to it.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/ring.h"
#include "tests/engine/engine_fixture.h"

namespace cairn::engine {

// Of a part of one object, of so many bytes.
Manifest ManifestOf(const PartKey& part, int32_t world_size, uint64_t bytes);
std::string DigestOf(const Manifest& manifest);
// As a member says that it wants this part kept.
peer::Want WantOf(const Manifest& manifest, bool target = false);

class RingTest : public EngineTest {
 protected:
  // What is fetched comes, and is what the manifest says.
  void Bring(const action::Fetch& fetch, const Manifest& manifest);
  // The last message of a kind that this node said to that member; nullptr: none.
  template <class T>
  const T* LastSaid(Rank to) const {
    const T* last = nullptr;
    for (const action::Tell& tell : tells) {
      if (tell.rank != to) continue;
      if (const T* said = std::get_if<T>(&tell.message)) last = said;
    }
    return last;
  }
};

class PartsElsewhere : public RingTest {
 protected:
  bool storage = true;
  void SetUp() override;
  // A session of another job, of which the members have nothing.
  SessionId OfAnotherJob();
  // The home says this of the job; of each step of attempt 1 that was told before, the same as before.
  void Hear();
  // The next daemon meets the other member, and hears of the job.
  void RestartInTheRing(StartFrom from = StartFrom::kJournal);
  void Complete(Step step, int replicas = 0);
  // One of a job's two writers; the other one runs on the other member.
  SessionId OneOfTwo(Attempt attempt);
  // To its deadline, if need be.
  Status Asks(SessionId session, Step step, uint64_t bytes, const std::string& name = "model");
  bool Holds(Step step, Attempt attempt = 1);
  // The part that each writer of an earlier life has in storage.
  void StoreWhole(Step step, Attempt attempt, int32_t world_size, uint64_t bytes_each);
  // The other member wants a part of its writer kept here: its digest.
  std::string Want(const Manifest& manifest, const PartKey& part, uint64_t bytes,
                   bool target = false);
  // All that the other member wants kept here.
  void Wants(std::vector<peer::Want> list);
  // The newest list that this node said to it.
  std::vector<peer::Have> SaidHaves() const;
  // What it was told last of the part; nullptr: nothing.
  const peer::Have* SaidOf(const PartKey& part) const;
  // And it comes.
  void Replicate(const PartKey& part, int32_t world_size, uint64_t bytes);
  // An open of what is here in nobody's memory: the home says that the other member has it.
  RequestId OpensWhatTheOtherHas(SessionId reader, const Manifest& manifest);
  peer::PlacesSaid PlacesOf(const Manifest& manifest) const;
  // The home says so of a checkpoint of one writer.
  void OneWriterCompletes(Step step);

  MemberId other;
  std::string another_job = "another";
  JobVerdict verdict;
  uint64_t wants = 0;
};

}  // namespace cairn::engine
