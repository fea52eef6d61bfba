// What an event needs of the journal. An event that does not stand here does not compile.
#pragma once

#include <type_traits>

#include "server/engine/events.h"

namespace cairn::engine {

struct JournalUse {
  // What it promises would be lost: a node whose journal can't be written refuses it.
  bool is_a_promise = false;
  // Adds a little and ends nothing there: refused when the journal is nearly full. (Creates are looked
  // at more closely where they are admitted; what ends things is always let through.)
  bool adds_a_little = false;
};

template <class E, class... Some>
constexpr bool kIsOneOf = (std::is_same_v<E, Some> || ...);

template <class E>
constexpr JournalUse JournalUseOf() {
  // To choose an attempt says nothing to the journal, but a life begins with it.
  if constexpr (kIsOneOf<E, event::Create, event::SealObjects, event::Commit,
                         event::ChooseAttempt>) {
    return {.is_a_promise = true};
  } else if constexpr (kIsOneOf<E, event::Store, event::ResumeFrom, event::Use, event::Remove,
                                event::Pin, event::SetPolicy>) {
    return {.is_a_promise = true, .adds_a_little = true};
  } else if constexpr (kIsOneOf<E, event::Hello, event::Open, event::MapStanding>) {
    return {.adds_a_little = true};
  } else {
    // To persist is journaled once for each checkpoint, and asked of a node in safe mode, too.
    static_assert(
        kIsOneOf<E, event::PersistNow, event::Leave, event::SessionEnded, event::Abort,
                 event::LocateChunk, event::Release, event::Renew, event::AwaitUnmap,
                 event::LendFailed, event::Latest, event::StatCheckpoint, event::StatObject,
                 event::List, event::Wait, event::PreviewPolicy, event::Status, event::SlabMade,
                 event::SlabDestroyed, event::SlabProbed, event::ManifestWritten,
                 event::ChunkWritten, event::Verified, event::Persisted, event::Stored,
                 event::LineRecordWritten, event::FilesDeleted, event::JobScanned,
                 event::TablesRead, event::LineNumbersRead, event::Exchanged, event::PeerSaid,
                 event::LifeMet, event::SeatChanged, event::Fenced, event::GrantAsked,
                 event::GrantEnded, event::FetchAdvanced, event::Fetched, event::StorageSeen,
                 event::CallerLeft, event::Tick, event::Drain, event::JournalFull>,
        "what does this event need of the journal?");
    return {};
  }
}

}  // namespace cairn::engine
