//! Removing history, in pieces between the commits, so that no transaction waits for all of it.

use std::sync::atomic::Ordering;

use ::redb::ReadableTable;
use tokio::sync::oneshot;

use super::{Writer, send};
use crate::store::redb::tables::{LOG, MARKS, META, META_COMPACTED, UNDO, failure, log_keys};
use crate::store::{Error, Mark, Revision};

/// Revisions whose history is removed in one piece.
const COMPACTION_PIECE: usize = 1024;

/// A compaction that has not come to its end.
pub(super) struct Compaction {
    upto: Revision,
    waiting: Vec<oneshot::Sender<Result<(), Error>>>,
}

impl Writer {
    /// Takes up a compaction that an earlier process had begun.
    pub(super) fn resume_compaction(&mut self) {
        let upto = self.shared.oldest();
        if upto > 0 {
            self.compaction = Some(Compaction {
                upto,
                waiting: Vec::new(),
            });
        }
    }

    pub(super) fn start_compaction(
        &mut self,
        upto: Revision,
        answer: oneshot::Sender<Result<(), Error>>,
    ) {
        let refusal = if self.shared.is_closed() {
            Some(self.shared.closed_error())
        } else if upto > self.revision {
            Some(Error::Future {
                asked: upto,
                current: self.revision,
            })
        } else {
            None
        };
        if let Some(refusal) = refusal {
            send(answer, Err(refusal));
            return;
        }
        if upto <= self.shared.oldest() && self.compaction.is_none() {
            send(answer, Ok(()));
            return;
        }
        let compaction = self.compaction.get_or_insert_with(|| Compaction {
            upto,
            waiting: Vec::new(),
        });
        compaction.upto = compaction.upto.max(upto);
        compaction.waiting.push(answer);
    }

    /// See [`Store::mark`](crate::store::Store::mark).
    pub(super) fn mark(&self, mark: Mark, answer: oneshot::Sender<Result<(), Error>>) {
        let result = if self.shared.is_closed() {
            Err(self.shared.closed_error())
        } else if self.shared.space.is_full() {
            // The reserve is for deletes.
            Err(Error::NoSpace)
        } else {
            match self.write_mark(mark) {
                Err(Error::NoSpace) => self.reopen_full().and(Err(Error::NoSpace)),
                other => other,
            }
        };
        if let Err(err) = &result
            && !matches!(err, Error::NoSpace)
            && !self.shared.is_closed()
        {
            self.fail(err);
        }
        send(answer, result);
    }

    fn write_mark(&self, mark: Mark) -> Result<(), Error> {
        let database = self.shared.database.read();
        let database = database
            .as_ref()
            .ok_or_else(|| self.shared.closed_error())?;
        let write = database.begin_write().map_err(failure)?;
        write
            .open_table(MARKS)
            .map_err(failure)?
            .insert(mark.revision, mark.at.as_millisecond())
            .map_err(failure)?;
        write.commit().map_err(failure)
    }

    /// Removes the next piece of history; answers when it was the last one.
    pub(super) fn compact_piece(&mut self) {
        let Some(mut compaction) = self.compaction.take() else {
            return;
        };
        let was_full = self.shared.space.is_full();
        let result = match self.remove_piece(compaction.upto) {
            Ok(true) => {
                self.compaction = Some(compaction);
                return;
            },
            Ok(false) if was_full => self.shrink(),
            Ok(false) => Ok(()),
            Err(Error::NoSpace) => match self.reopen_full() {
                Ok(()) if !was_full => {
                    self.compaction = Some(compaction);
                    return;
                },
                Ok(()) => Err(Error::NoSpace),
                Err(err) => Err(err),
            },
            Err(err) => Err(err),
        };
        if let Err(err) = &result
            && !matches!(err, Error::NoSpace)
        {
            self.fail(err);
        }
        for waiting in compaction.waiting.drain(..) {
            send(
                waiting,
                match &result {
                    Ok(()) => Ok(()),
                    Err(Error::NoSpace) => Err(Error::NoSpace),
                    Err(_) => Err(self.shared.closed_error()),
                },
            );
        }
    }

    /// Gives the disk back what is free inside of the file. Readers wait meanwhile, so this is done
    /// only on a full disk, where deletes would else make no room for anybody.
    fn shrink(&self) -> Result<(), Error> {
        let shrunk = match self.shared.database.write().as_mut() {
            Some(database) => database.compact().map_err(failure),
            None => return Err(self.shared.closed_error()),
        };
        match shrunk {
            Ok(_) => {
                self.shared.space.try_recover();
                Ok(())
            },
            Err(Error::NoSpace) => self.reopen_full(),
            Err(err) => Err(err),
        }
    }

    /// Whether there is more to remove.
    fn remove_piece(&self, upto: Revision) -> Result<bool, Error> {
        let database = self.shared.database.read();
        let database = database
            .as_ref()
            .ok_or_else(|| self.shared.closed_error())?;
        let write = database.begin_write().map_err(failure)?;
        let mut removed = 0;
        let known = {
            let mut meta = write.open_table(META).map_err(failure)?;
            let known = meta
                .get(META_COMPACTED)
                .map_err(failure)?
                .map_or(0, |value| value.value());
            if known < upto {
                meta.insert(META_COMPACTED, upto).map_err(failure)?;
                let mut marks = write.open_table(MARKS).map_err(failure)?;
                marks.retain_in(..=upto, |_, _| false).map_err(failure)?;
            }
            known
        };
        {
            let mut log = write.open_table(LOG).map_err(failure)?;
            let mut undo = write.open_table(UNDO).map_err(failure)?;
            for entry in log
                .extract_from_if(..=upto, |_, _| true)
                .map_err(failure)?
                .take(COMPACTION_PIECE)
            {
                let (revision, keys) = entry.map_err(failure)?;
                for key in log_keys(keys.value()) {
                    undo.remove((key?, revision.value())).map_err(failure)?;
                }
                removed += 1;
            }
        }
        if removed == 0 && known >= upto {
            write.abort().map_err(failure)?;
            return Ok(false);
        }
        write.commit().map_err(failure)?;
        self.shared.oldest.fetch_max(upto, Ordering::AcqRel);
        Ok(removed == COMPACTION_PIECE)
    }
}
