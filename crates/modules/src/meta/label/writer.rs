//! Who may write the whole, and under which generations its leaves were held, in a label.

use thinwire_volume::{HolderName, KeptWriter, LeafGeneration, WriterRecord};

use super::fields::*;
use super::{LABEL_BYTES, LabelFault, LabelImage};

/// Leaves stand behind the state. A compatible feature.
pub(super) const LEAVES: u64 = 2;
/// Under some generations of the writer nobody has written. A compatible feature.
pub(super) const IDLE: u64 = 4;

/// Bytes that these take at the end of a label.
pub(super) fn leaves_bytes(writer: Option<&KeptWriter>) -> usize {
    let leaves = writer.and_then(|kept| kept.leaves.as_ref());
    leaves.map_or(0, |leaves| leaves.len() * ROW_BYTES)
}

/// Puts it there, with what is to be said among the compatible features.
pub(super) fn put_writer(image: &mut LabelImage, kept: &KeptWriter) -> u64 {
    let WriterRecord { generation, holder, name, idle } = &kept.record;
    let name = name.as_str();
    put(image, 0, HAS_WRITER, &[1]);
    put(image, 0, WRITER_NAME_LENGTH, &[name.len() as u8]);
    put(image, 0, WRITER_GENERATION, &generation.to_le_bytes());
    put(image, 0, WRITER_HOLDER, holder);
    put(image, 0, WRITER_NAME, name.as_bytes());
    put(image, 0, WRITER_IDLE, &idle.to_le_bytes());
    let with_idle = if *idle > 0 { IDLE } else { 0 };
    let Some(leaves) = &kept.leaves else { return with_idle };
    put(image, 0, WRITER_LEAVES, &(leaves.len() as u16).to_le_bytes());
    for (leaf, at) in
        leaves.iter().zip((LABEL_BYTES - leaves_bytes(Some(kept))..).step_by(ROW_BYTES))
    {
        put(image, at, LEAF, &leaf.leaf);
        put(image, at, LEAF_GENERATION, &leaf.generation.to_le_bytes());
    }
    LEAVES | with_idle
}

/// Who may write the whole, if that is kept here, by these compatible features. `end` is where what stands before the leaves ends.
pub(super) fn writer(
    image: &LabelImage,
    compatible: u64,
    end: usize,
) -> Result<Option<KeptWriter>, LabelFault> {
    let [has_leaves, has_idle] = [LEAVES, IDLE].map(|feature| compatible & feature != 0);
    let [has] = bytes(image, 0, HAS_WRITER);
    if has == 0 {
        let wrong = |why: &str| Err(LabelFault::malformed("has writer", why));
        return match (has_leaves, has_idle) {
            (true, _) => wrong("is 0, and it has leaves of one"),
            (false, true) => wrong("is 0, and it has idle generations of one"),
            (false, false) => Ok(None),
        };
    }
    if has != 1 {
        return Err(LabelFault::malformed("has writer", format!("is {has}, neither 0 nor 1")));
    }
    let [len] = bytes(image, 0, WRITER_NAME_LENGTH);
    let name: [u8; WRITER_NAME.len] = bytes(image, 0, WRITER_NAME);
    let Some(name) = name.get(..usize::from(len)) else {
        let why = format!("is {len}, of {} bytes", WRITER_NAME.len);
        return Err(LabelFault::malformed("writer name length", why));
    };
    let name = std::str::from_utf8(name)
        .map_err(|_| LabelFault::malformed("writer name", "is not UTF-8"))?;
    let record = WriterRecord {
        generation: u64_of(image, 0, WRITER_GENERATION),
        holder: bytes(image, 0, WRITER_HOLDER),
        name: HolderName::new(name),
        // An earlier version may have stored another writer beside what it does not know.
        idle: if has_idle { u32::from_le_bytes(bytes(image, 0, WRITER_IDLE)) } else { 0 },
    };
    let leaves = if has_leaves { Some(leaves(image, end)?) } else { None };
    Ok(Some(KeptWriter { record, leaves }))
}

fn leaves(image: &LabelImage, end: usize) -> Result<Vec<LeafGeneration>, LabelFault> {
    let count = usize::from(u16_of(image, WRITER_LEAVES));
    let room = (LABEL_BYTES - end) / ROW_BYTES;
    if count > room {
        let why = format!("is {count}, and there is room for {room}");
        return Err(LabelFault::malformed("writer leaves", why));
    }
    let leaf = |at| LeafGeneration {
        leaf: bytes(image, at, LEAF),
        generation: u64_of(image, at, LEAF_GENERATION),
    };
    Ok((LABEL_BYTES - count * ROW_BYTES..LABEL_BYTES).step_by(ROW_BYTES).map(leaf).collect())
}
