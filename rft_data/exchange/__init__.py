"""What others bring and take: file formats, feedback, preference pairs, annotations."""
